#include "ops/cpu/nhwc.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "ops/cpu/kernels/transpose.h"

namespace horizon::ops {
namespace {

constexpr int64_t kGrain = 1 << 16;
constexpr int64_t kColumns = 64;  ///< that share a cache line

at::MemoryFormat other_format(at::MemoryFormat format) {
  return format == at::MemoryFormat::Contiguous ? at::MemoryFormat::ChannelsLast
                                                : at::MemoryFormat::Contiguous;
}

/// Writes codes [N, C, H, W] that lie in the other format into `out`, whose memory is in `format`.
void transpose_codes(const at::Tensor& image, at::MemoryFormat format, const at::Tensor& out) {
  const int64_t channels = image.size(1);
  const int64_t pixels = image.size(2) * image.size(3);
  const bool last = format == at::MemoryFormat::ChannelsLast;
  const int64_t rows = last ? channels : pixels;
  const int64_t columns = last ? pixels : channels;
  const int64_t shares = (columns + kColumns - 1) / kColumns;
  const auto* from = image.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<uint8_t>();
  const auto transpose = cpu::transpose_kernels().transpose;
  const int64_t grain = std::max<int64_t>(1, kGrain / (rows * std::min(columns, kColumns)));
  at::parallel_for(0, image.size(0) * shares, grain, [&](int64_t begin, int64_t end) {
    // Neighbours in one image are one call: the last columns of a call are the slow ones.
    while (begin < end) {
      const int64_t first = begin % shares;
      const int64_t count = std::min(end - begin, shares - first);
      const int64_t column = first * kColumns;
      const int64_t width = std::min(count * kColumns, columns - column);
      const int64_t base = begin / shares * rows * columns;
      transpose(from + base + column, columns, rows, width, to + base + column * rows, rows);
      begin += count;
    }
  });
}

bool can_transpose(const at::Tensor& image, at::MemoryFormat format) {
  return image.scalar_type() == at::kByte && image.dim() == 4 && image.numel() > 0 &&
         image.is_contiguous(other_format(format));
}

}  // namespace

at::Tensor laid_out(const at::Tensor& image, at::MemoryFormat format) {
  if (image.is_contiguous(format) || !can_transpose(image, format)) return image.contiguous(format);
  const at::Tensor out = at::empty(image.sizes(), image.options(), format);
  transpose_codes(image, format, out);
  return out;
}

at::Tensor as_nhwc(const at::Tensor& image) {
  const at::Tensor batch = image.dim() == 3 ? image.unsqueeze(0) : image;
  return laid_out(batch, at::MemoryFormat::ChannelsLast);
}

NhwcResult::NhwcResult(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format,
                       bool image)
    : result_(at::empty(sizes, at::TensorOptions(type), format)), nhwc_(result_) {
  if (!image) return;
  // The two orders are one for a single channel or a single pixel.
  const bool same = result_.size(-3) <= 1 || result_.size(-1) * result_.size(-2) <= 1;
  if (same || format != at::MemoryFormat::Contiguous) return;
  const at::Tensor batch = result_.dim() == 3 ? result_.unsqueeze(0) : result_;
  nhwc_ = at::empty(batch.sizes(), result_.options(), at::MemoryFormat::ChannelsLast);
}

at::Tensor NhwcResult::finish() const {
  if (nhwc_.is_same(result_)) return result_;
  const at::Tensor batch = result_.dim() == 3 ? result_.unsqueeze(0) : result_;
  if (can_transpose(nhwc_, at::MemoryFormat::Contiguous)) {
    transpose_codes(nhwc_, at::MemoryFormat::Contiguous, batch);
  } else {
    batch.copy_(nhwc_);
  }
  return result_;
}

}  // namespace horizon::ops
