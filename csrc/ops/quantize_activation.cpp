#include "ops/quantize_activation.h"

#include <torch/library.h>

namespace horizon::ops {
namespace {

// The quantizer arguments Q.
#define HORIZON_Q                                                                       \
  "Tensor(a!)? min_val, Tensor(b!)? max_val, Tensor(c!)? observed, Tensor(d!)? scale, " \
  "Tensor(e!)? zero_point, int preset, int observer, float averaging_constant, "        \
  "bool observe, bool fake_quantize, bool skip_nonfinite"

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def("quantize_activation(Tensor x, " HORIZON_Q ") -> (Tensor, Tensor, Tensor)");
  m.def("_quantize_activation_mask(Tensor x, " HORIZON_Q ") -> (Tensor, Tensor, Tensor, Tensor)");
}

using Optional = const std::optional<at::Tensor>&;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
template <typename Result>
using Signature = Result(const at::Tensor&, Optional, Optional, Optional, Optional, Optional,
                         int64_t, int64_t, double, bool, bool, bool);

}  // namespace

Three quantize_activation(const at::Tensor& x, const QuantizerArgs& q) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::quantize_activation", "")
                             .typed<Signature<Three>>();
  return op.call(x, q.min_val, q.max_val, q.observed, q.scale, q.zero_point, q.preset, q.observer,
                 q.averaging_constant, q.observe, q.fake_quantize, q.skip_nonfinite);
}

Four quantize_activation_mask(const at::Tensor& x, const QuantizerArgs& q) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::_quantize_activation_mask", "")
                             .typed<Signature<Four>>();
  return op.call(x, q.min_val, q.max_val, q.observed, q.scale, q.zero_point, q.preset, q.observer,
                 q.averaging_constant, q.observe, q.fake_quantize, q.skip_nonfinite);
}

}  // namespace horizon::ops
