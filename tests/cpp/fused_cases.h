#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "ops/fused.h"
#include "ops/fused_convolution.h"
#include "ops/fused_shapes.h"

// Groups that the training op is tested with, and its arguments for them.
namespace fused_cases {

namespace ops = horizon::ops;

enum class Norm { kNone, kFrozen, kBatch };
enum class Skip { kNone, kSame, kRow, kLarger };

struct Case {
  int64_t base = 0;
  int64_t channels = 7;
  bool channels_last = false;
  Norm norm = Norm::kBatch;
  Skip skip = Skip::kNone;
  int64_t activation = 1;
  int64_t preset = 0;
  bool observe = true;
  bool quantizer = true;
  at::ScalarType type = at::kFloat;
  bool grid = false;  ///< the input lies on one
  int64_t batch = 3;
  int64_t groups = 1;
  bool bare = false;        ///< no gamma, beta, bias and running statistics
  bool cumulative = false;  ///< momentum is 1 / batches
  bool unbatched = false;   ///< an image without the batch dimension
};

inline std::string text(const Case& c) {
  return "base " + std::to_string(c.base) + ", channels " + std::to_string(c.channels) +
         (c.channels_last ? ", channels last" : ", contiguous") + ", norm " +
         std::to_string(static_cast<int>(c.norm)) + ", skip " +
         std::to_string(static_cast<int>(c.skip)) + ", activation " + std::to_string(c.activation) +
         ", preset " + std::to_string(c.preset) + ", observe " + std::to_string(c.observe) +
         ", quantizer " + std::to_string(c.quantizer) + ", dtype " + c10::toString(c.type) +
         ", grid " + std::to_string(c.grid) + ", batch " + std::to_string(c.batch);
}

inline at::Tensor number(double value, at::ScalarType type) {
  return at::scalar_tensor(value, type);
}

inline at::Tensor skip_of(const Case& c, at::IntArrayRef z, const at::TensorOptions& options) {
  std::vector<int64_t> sizes = z.vec();
  if (c.skip == Skip::kRow) sizes = {z[1]};
  if (c.skip == Skip::kRow && z.size() == 4) sizes = {z[1], 1, 1};
  if (c.skip == Skip::kLarger) sizes.insert(sizes.begin(), 2);
  at::Tensor skip = at::randn(sizes, options);
  if (c.channels_last && skip.dim() == 4) skip = skip.contiguous(at::MemoryFormat::ChannelsLast);
  return skip;
}

inline ops::FusedArgs arguments(const Case& c) {
  at::manual_seed(7);
  const auto options = at::device(at::kCPU).dtype(c.type);
  ops::FusedArgs a;
  a.base = c.base;
  a.groups = c.groups;
  a.activation = c.activation;
  const int64_t inputs = 4 * c.groups;
  if (c.base == 2) {
    a.input = at::randn({29 * c.batch, inputs}, options);
    a.weight = at::randn({c.channels, inputs}, options);
  } else {
    a.input = at::randn({c.batch, inputs, 7, 5}, options);
    const bool transposed = c.base == 1;
    a.weight = transposed ? at::randn({inputs, c.channels / c.groups, 3, 3}, options)
                          : at::randn({c.channels, inputs / c.groups, 3, 3}, options);
    a.padding = {1, 1};
    if (transposed) a.stride = {2, 2};
    if (c.unbatched) a.input = a.input.select(0, 0).contiguous();
    if (c.channels_last) a.input = a.input.contiguous(at::MemoryFormat::ChannelsLast);
  }
  if (c.grid) {
    a.input_scale = number(0.03, at::kFloat);
    a.input_zero_point = number(c.preset == 2 ? 93 : 128, at::kInt);
    const auto zero = a.input_zero_point->item<int32_t>();
    a.input = ((a.input / 0.03).round().clamp(-zero, 255 - zero) * 0.03F).to(c.type);
  }
  if (!c.bare) a.bias = at::randn({c.channels}, options);
  if (c.norm != Norm::kNone) {
    a.batch_norm = true;
    a.batch_stats = c.norm == Norm::kBatch;
    if (c.cumulative) a.momentum = std::nullopt;
    if (!c.bare) {
      a.bn_weight = at::randn({c.channels}, options);
      a.bn_bias = at::randn({c.channels}, options);
      a.running_mean = at::randn({c.channels}, options);
      a.running_var = at::rand({c.channels}, options).add_(0.5);
      a.num_batches_tracked = number(4, at::kLong);
    }
  }
  std::vector<int64_t> z;
  for (const auto& size : ops::fused_z_sizes(ops::fused_convolution(a))) {
    z.push_back(size.expect_int());
  }
  if (c.skip != Skip::kNone) a.skip = skip_of(c, z, options);
  if (c.quantizer) {
    a.quantizer.min_val = number(-2.0, at::kFloat);
    a.quantizer.max_val = number(3.0, at::kFloat);
    a.quantizer.observed = number(3, at::kLong);
    a.quantizer.scale = number(5.0 / 255.0, at::kFloat);
    a.quantizer.zero_point = number(c.preset == 2 ? 102 : 0, at::kInt);
    a.quantizer.preset = c.preset;
    a.quantizer.observe = c.observe;
    a.quantizer.fake_quantize = true;
  }
  return a;
}

inline std::vector<std::optional<at::Tensor>*> state(ops::FusedArgs& a) {
  return {&a.running_mean,      &a.running_var,         &a.num_batches_tracked,
          &a.quantizer.min_val, &a.quantizer.max_val,   &a.quantizer.observed,
          &a.quantizer.scale,   &a.quantizer.zero_point};
}

inline ops::FusedArgs with_own_state(const ops::FusedArgs& args) {
  ops::FusedArgs copy = args;
  for (auto* tensor : state(copy)) {
    if (tensor->has_value()) *tensor = (*tensor)->clone();
  }
  return copy;
}

inline ops::FusedPlan plan_of(const ops::FusedArgs& args) {
  ops::FusedPlan plan;
  plan.channels_last = ops::fused_channels_last(args);
  plan.save_z = args.batch_norm;
  plan.save_mask = args.activation != 0 || args.quantizer.quantizes();
  plan.save_moments = args.batch_norm;
  plan.save_codes = args.input_scale.has_value();
  return plan;
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t channels : {1, 3, 7, 17, 64, 72, 130}) {
    for (const bool last : {false, true}) {
      Case c;
      c.channels = channels;
      c.channels_last = last;
      all.push_back(c);
      c.norm = Norm::kFrozen;
      c.skip = Skip::kSame;
      c.activation = 2;
      all.push_back(c);
      c.norm = Norm::kNone;
      c.grid = true;
      c.preset = 2;
      all.push_back(c);
      c.norm = Norm::kBatch;
      all.push_back(c);
      c.skip = Skip::kNone;
      all.push_back(c);
    }
    Case linear;
    linear.base = 2;
    linear.channels = channels;
    all.push_back(linear);
  }
  for (const Skip skip : {Skip::kNone, Skip::kSame, Skip::kRow, Skip::kLarger}) {
    for (const Norm norm : {Norm::kNone, Norm::kFrozen, Norm::kBatch}) {
      for (const int64_t activation : {0, 1, 2}) {
        Case c;
        c.skip = skip;
        c.norm = norm;
        c.activation = activation;
        c.preset = activation;
        c.channels_last = activation == 2;
        all.push_back(c);
        c.observe = false;
        all.push_back(c);
        c.quantizer = false;
        all.push_back(c);
      }
    }
  }
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const Skip skip : {Skip::kNone, Skip::kSame, Skip::kLarger}) {
      for (const bool grid : {false, true}) {
        Case c;
        c.type = type;
        c.skip = skip;
        c.grid = grid;
        c.channels_last = grid;
        all.push_back(c);
      }
    }
  }
  for (const int64_t batch : {0, 1}) {
    for (const int64_t base : {0, 1, 2}) {
      Case c;
      c.batch = batch;
      c.base = base;
      c.channels = 8;
      c.grid = true;
      c.groups = base == 2 ? 1 : 2;
      all.push_back(c);
      c.channels_last = base != 2;
      c.skip = Skip::kSame;
      all.push_back(c);
    }
  }
  for (const bool grid : {false, true}) {
    for (const bool last : {false, true}) {
      Case c;
      c.grid = grid;
      c.channels_last = last;
      c.bare = true;
      all.push_back(c);
      c.bare = false;
      c.cumulative = true;
      all.push_back(c);
    }
    Case c;
    c.grid = grid;
    c.norm = Norm::kNone;
    c.unbatched = true;
    all.push_back(c);
    c.skip = Skip::kRow;
    all.push_back(c);
  }
  return all;
}

}  // namespace fused_cases
