#pragma once

#include <ATen/core/Tensor.h>

namespace horizon::ops {

/// image.contiguous(format). Codes that lie in the other format are transposed by a kernel of ours,
/// several times as fast.
at::Tensor laid_out(const at::Tensor& image, at::MemoryFormat format);

/// [N, C, H, W] with NHWC memory, copying where the tensor has another; 3-d images get a batch.
at::Tensor as_nhwc(const at::Tensor& image);

/// A result of three or four dimensions that kernels write in NHWC order, whatever its memory
/// format. What is no image is written as it lies.
class NhwcResult {
 public:
  NhwcResult(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format,
             bool image = true);

  void* data() const { return nhwc_.mutable_data_ptr(); }

  /// The result in its own memory format, once everything is written.
  at::Tensor finish() const;

 private:
  at::Tensor result_, nhwc_;
};

}  // namespace horizon::ops
