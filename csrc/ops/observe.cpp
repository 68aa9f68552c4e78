#include "ops/observe.h"

#include <torch/library.h>

namespace horizon::ops {
namespace {

TORCH_LIBRARY_FRAGMENT(horizon, m) {
  m.def(
      "observe_(Tensor x, Tensor(a!) min_val, Tensor(b!) max_val, Tensor(c!) observed, "
      "Tensor(d!) scale, Tensor(e!) zero_point, int preset, int observer, "
      "float averaging_constant, bool skip_nonfinite) -> ()");
}

}  // namespace

void observe_(const at::Tensor& x, const at::Tensor& min_val, const at::Tensor& max_val,
              const at::Tensor& observed, const at::Tensor& scale, const at::Tensor& zero_point,
              int64_t preset, int64_t observer, double averaging_constant, bool skip_nonfinite) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("horizon::observe_", "")
                             .typed<decltype(observe_)>();
  op.call(x, min_val, max_val, observed, scale, zero_point, preset, observer, averaging_constant,
          skip_nonfinite);
}

}  // namespace horizon::ops
