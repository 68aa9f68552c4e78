#include "jit/op_support.h"

#include <string>
#include <unordered_map>

namespace horizon::jit {

const std::vector<OpSupport>& op_support() {
  static const std::vector<OpSupport> table = {
      {"aten::conv1d", Role::kAnchor, "conv1d"},
      {"aten::conv2d", Role::kAnchor, "conv2d"},
      {"aten::conv3d", Role::kAnchor, "conv3d"},
      {"aten::conv_transpose1d", Role::kAnchor, "conv1d_transpose"},
      {"aten::conv_transpose2d", Role::kAnchor, "conv2d_transpose"},
      {"aten::conv_transpose3d", Role::kAnchor, "conv3d_transpose"},
      {"aten::_convolution", Role::kAnchor, nullptr},
      {"aten::_convolution_mode", Role::kAnchor, nullptr},
      {"aten::convolution", Role::kAnchor, nullptr},
      {"aten::linear", Role::kAnchor, "dense"},
      {"horizon::fused", Role::kAnchor, nullptr},

      {"aten::relu", Role::kFollower, "relu", true},
      {"aten::relu6", Role::kFollower, "clip"},
      {"aten::hardtanh", Role::kFollower, "clip"},
      {"aten::clamp", Role::kFollower, "clip"},
      {"aten::clamp_min", Role::kFollower, "clip"},
      {"aten::clamp_max", Role::kFollower, "clip"},
      {"aten::clip", Role::kFollower, "clip"},
      {"aten::max_pool1d", Role::kFollower, "max_pool1d", true},
      {"aten::max_pool2d", Role::kFollower, "max_pool2d", true},
      {"aten::max_pool3d", Role::kFollower, "max_pool3d", true},
      {"aten::max_pool1d_with_indices", Role::kFollower, "max_pool1d", true},
      {"aten::max_pool2d_with_indices", Role::kFollower, "max_pool2d", true},
      {"aten::max_pool3d_with_indices", Role::kFollower, "max_pool3d", true},
      {"aten::batch_norm", Role::kFollower, "batch_norm"},
      {"aten::dropout", Role::kFollower, "dropout", true},
      {"aten::feature_dropout", Role::kFollower, "dropout", true},
      {"aten::alpha_dropout", Role::kFollower, "dropout", true},
      // The quantizer at the end of a group belongs to it.
      {"aten::fake_quantize_per_tensor_affine", Role::kFollower, nullptr, true},
      {"horizon::fake_quantize_per_tensor", Role::kFollower, nullptr, true},
      {"horizon::quantize_activation", Role::kFollower, nullptr, true},

      {"aten::add", Role::kArithmetic, "add"},
      {"aten::mul", Role::kArithmetic, "multiply"},
      {"aten::multiply", Role::kArithmetic, "multiply"},

      {"aten::size", Role::kMetadata, nullptr},
      {"aten::sym_size", Role::kMetadata, nullptr},
      {"aten::stride", Role::kMetadata, nullptr},
      {"aten::dim", Role::kMetadata, nullptr},
      {"aten::ndimension", Role::kMetadata, nullptr},
      {"aten::numel", Role::kMetadata, nullptr},
      {"aten::len", Role::kMetadata, nullptr},
      {"aten::storage_offset", Role::kMetadata, nullptr},
      {"aten::element_size", Role::kMetadata, nullptr},
      {"aten::is_floating_point", Role::kMetadata, nullptr},
      {"aten::is_complex", Role::kMetadata, nullptr},
      {"aten::is_contiguous", Role::kMetadata, nullptr},
      {"aten::__is__", Role::kMetadata, nullptr},
      {"aten::__isnot__", Role::kMetadata, nullptr},
      {"aten::get_device", Role::kMetadata, nullptr},
      {"prim::shape", Role::kMetadata, nullptr},
      {"prim::device", Role::kMetadata, nullptr},
      {"prim::dtype", Role::kMetadata, nullptr},
      {"prim::layout", Role::kMetadata, nullptr},
      {"prim::requires_grad", Role::kMetadata, nullptr},
      {"prim::is_cuda", Role::kMetadata, nullptr},
      {"prim::is_cpu", Role::kMetadata, nullptr},

      {"annotation::cast_hint", Role::kAnnotation, "annotation.cast_hint"},
      {"annotation::stop_fusion", Role::kAnnotation, "annotation.stop_fusion"},

      // These move elements, and may repeat or drop some.
      {"aten::adjoint", Role::kOther, nullptr, true},
      {"aten::alias", Role::kOther, nullptr, true},
      {"aten::broadcast_to", Role::kOther, nullptr, true},
      {"aten::channel_shuffle", Role::kOther, nullptr, true},
      {"aten::chunk", Role::kOther, nullptr, true},
      {"aten::clone", Role::kOther, nullptr, true},
      {"aten::contiguous", Role::kOther, nullptr, true},
      {"aten::detach", Role::kOther, nullptr, true},
      {"aten::diagonal", Role::kOther, nullptr, true},
      {"aten::expand", Role::kOther, "broadcast_to", true},
      {"aten::expand_as", Role::kOther, nullptr, true},
      {"aten::flatten", Role::kOther, "batch_flatten", true},
      {"aten::flip", Role::kOther, nullptr, true},
      {"aten::gather", Role::kOther, nullptr, true},
      {"aten::hsplit", Role::kOther, nullptr, true},
      {"aten::index_select", Role::kOther, nullptr, true},
      {"aten::moveaxis", Role::kOther, nullptr, true},
      {"aten::movedim", Role::kOther, nullptr, true},
      {"aten::narrow", Role::kOther, nullptr, true},
      {"aten::native_channel_shuffle", Role::kOther, nullptr, true},
      {"aten::permute", Role::kOther, "transpose", true},
      {"aten::pixel_shuffle", Role::kOther, nullptr, true},
      {"aten::pixel_unshuffle", Role::kOther, nullptr, true},
      {"aten::ravel", Role::kOther, nullptr, true},
      {"aten::repeat", Role::kOther, nullptr, true},
      {"aten::repeat_interleave", Role::kOther, nullptr, true},
      {"aten::reshape", Role::kOther, "reshape", true},
      {"aten::reshape_as", Role::kOther, nullptr, true},
      {"aten::roll", Role::kOther, nullptr, true},
      {"aten::rot90", Role::kOther, nullptr, true},
      {"aten::select", Role::kOther, nullptr, true},
      {"aten::slice", Role::kOther, nullptr, true},
      {"aten::split", Role::kOther, nullptr, true},
      {"aten::split_with_sizes", Role::kOther, nullptr, true},
      {"aten::squeeze", Role::kOther, nullptr, true},
      {"aten::swapaxes", Role::kOther, nullptr, true},
      {"aten::swapdims", Role::kOther, nullptr, true},
      {"aten::t", Role::kOther, nullptr, true},
      {"aten::take_along_dim", Role::kOther, nullptr, true},
      {"aten::tensor_split", Role::kOther, nullptr, true},
      {"aten::tile", Role::kOther, nullptr, true},
      {"aten::transpose", Role::kOther, "transpose", true},
      {"aten::unbind", Role::kOther, nullptr, true},
      {"aten::unflatten", Role::kOther, nullptr, true},
      {"aten::unfold", Role::kOther, nullptr, true},
      {"aten::unsqueeze", Role::kOther, "expand_dims", true},
      {"aten::upsample_nearest2d", Role::kOther, nullptr, true},
      {"aten::view", Role::kOther, "reshape", true},
      {"aten::view_as", Role::kOther, nullptr, true},
      {"aten::vsplit", Role::kOther, nullptr, true},

      {"aten::cat", Role::kOther, "concatenate"},
      {"aten::concat", Role::kOther, "concatenate"},
      {"aten::concatenate", Role::kOther, "concatenate"},
      {"aten::sub", Role::kOther, "subtract"},
      {"aten::div", Role::kOther, "divide"},
      {"aten::matmul", Role::kOther, "matmul"},
  };
  return table;
}

const OpSupport* find_op_support(std::string_view name) {
  static const auto index = [] {
    std::unordered_map<std::string_view, const OpSupport*> rows;
    for (const OpSupport& row : op_support()) rows.emplace(row.name, &row);
    return rows;
  }();
  auto found = index.find(name);
  if (found == index.end() && name.size() > 1 && name.back() == '_') {
    found = index.find(name.substr(0, name.size() - 1));
  }
  return found == index.end() ? nullptr : found->second;
}

}  // namespace horizon::jit
