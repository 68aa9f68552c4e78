#include "nn/pending.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include "nn/grid.h"

namespace horizon::nn {
namespace {

using GroupPointer = std::shared_ptr<const FusedGroup>;

/// What decides what an op does besides its arguments.
struct Context {
  bool grad = at::GradMode::is_enabled();
  bool autocast =
      at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA);

  bool operator==(const Context&) const = default;
};

/// The call of a group's base.
struct BaseCall {
  at::Tensor source;
  int64_t version;
  Context context;
  std::optional<std::vector<int64_t>> output_size{};
};

/// The result of a convolution that its fused add has still to compute. Sizes and data are refused
/// through the hooks that TensorImpl has for tensors without storage.
class PendingImpl : public c10::TensorImpl {
 public:
  PendingImpl(GroupPointer group, BaseCall call, bool normed)
      : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), call.source.dtype(),
                   call.source.device()),
        group_(std::move(group)),
        call_(std::move(call)),
        normed_(normed),
        name_("the " + misuse()) {
    set_storage_access_should_throw();
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
    is_non_overlapping_and_dense_ = false;
  }

  const GroupPointer& group() const { return group_; }
  const BaseCall& call() const { return call_; }
  const at::Tensor& source() const { return call_.source; }
  bool normed() const { return normed_; }

  /// An add takes it once.
  void spend() const { spent_ = true; }
  bool spent() const { return spent_; }

  std::string misuse() const {
    return "result of " + group_->base_name() + " used before its add: " + group_->base_name() +
           " was fused into " + group_->add_name() +
           ", which computes it, so only the group's own modules and " + group_->add_name() +
           ".add may use it; leave " + group_->base_name() +
           " out of the fused list, or call nothing else between";
  }

  [[noreturn]] void refuse() const { TORCH_CHECK_VALUE(false, misuse()); }

  c10::IntArrayRef sizes_custom() const override { refuse(); }
  c10::IntArrayRef strides_custom() const override { refuse(); }
  c10::SymIntArrayRef sym_sizes_custom() const override { refuse(); }
  c10::SymIntArrayRef sym_strides_custom() const override { refuse(); }
  int64_t dim_custom() const override { refuse(); }
  int64_t numel_custom() const override { refuse(); }
  c10::SymInt sym_numel_custom() const override { refuse(); }
  int64_t storage_offset_custom() const override { refuse(); }
  c10::SymInt sym_storage_offset_custom() const override { refuse(); }
  int64_t size_custom(int64_t) const override { refuse(); }
  c10::SymInt sym_size_custom(int64_t) const override { refuse(); }
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat) const override { refuse(); }
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override { refuse(); }
  bool is_strides_like_custom(at::MemoryFormat) const override { refuse(); }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&,
                                                         bool) const override {
    refuse();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&,
                                                         bool) const override {
    refuse();
  }

 private:
  // "Cannot access storage of the result of conv used before its add: …"
  const char* tensorimpl_type_name() const override { return name_.c_str(); }

  GroupPointer group_;
  BaseCall call_;
  bool normed_;
  mutable bool spent_ = false;
  std::string name_;
};

const PendingImpl* pending_of(const at::Tensor& x) {
  return x.defined() ? dynamic_cast<const PendingImpl*>(x.unsafeGetTensorImpl()) : nullptr;
}

at::Tensor make_pending(const GroupPointer& group, const BaseCall& call, bool normed) {
  return at::Tensor(c10::make_intrusive<PendingImpl>(group, call, normed));
}

/// The link of `x` if it comes from the group's own base.
const PendingImpl* own_operand(const GroupPointer& group, const at::Tensor& x) {
  const PendingImpl* link = pending_of(x);
  if (link == nullptr) return nullptr;
  if (link->group() != group) link->refuse();
  TORCH_CHECK_VALUE(link->normed() || !group->has_norm, "result of ", group->base_name(),
                    " used by ", group->add_name(), ".add before ", group->names[1],
                    ", which was fused with it: call ", group->names[1], " between them");
  TORCH_CHECK_VALUE(!link->spent(), "result of ", group->base_name(), " used by ",
                    group->add_name(), ".add a second time: ", group->base_name(),
                    " is computed in the add, once for each; give the other add a FloatFunctional "
                    "of its own and leave ",
                    group->base_name(), " out of the fused list");
  TORCH_CHECK_VALUE(
      link->call().context == Context(), group->base_name(), " and ", group->add_name(),
      ".add must be called under the same grad mode and autocast, as ", group->base_name(),
      " is computed in the add: let the NoGradGuard hold both or neither, or leave ",
      group->base_name(), " out of the fused list");
  TORCH_CHECK_VALUE(version_of(link->source()) == link->call().version, "the input of ",
                    group->base_name(), " was changed in place between ", group->base_name(),
                    " and ", group->add_name(),
                    ".add, which computes from it: use the out-of-place op there (such as ReLU "
                    "without inplace)");
  return link;
}

}  // namespace

PlaceholderImpl::PlaceholderImpl(PlaceholderRole role) : role_(role) {}

std::shared_ptr<PlaceholderImpl> PlaceholderImpl::blank() const {
  return std::make_shared<PlaceholderImpl>(role_);
}

at::Tensor PlaceholderImpl::forward(const at::Tensor& input) {
  if (role_ == PlaceholderRole::kIdentity) return input;
  const PendingImpl* link = pending_of(input);
  if (role_ == PlaceholderRole::kNorm) {
    if (link != nullptr && link->group() == group) {
      return make_pending(group, link->call(), true);
    }
    if (link != nullptr) link->refuse();
    TORCH_CHECK_VALUE(false, path, " was fused into ", group->add_name(),
                      " and must be called on the result of ", group->base_name(),
                      " only, got another tensor: leave it out of the fused list, or give the "
                      "other call a batch norm of its own");
  }
  if (link != nullptr) link->refuse();
  if (role_ == PlaceholderRole::kActivation) return input;
  check_defined(input, path);
  return make_pending(group, {input, version_of(input), Context()}, false);
}

at::Tensor PlaceholderImpl::forward_sized(const at::Tensor& input, at::IntArrayRef output_size) {
  if (role_ != PlaceholderRole::kBase) return Layer::forward_sized(input, output_size);
  BaseCall call = pending_of(forward(input))->call();
  call.output_size = output_size.vec();
  return make_pending(group, call, false);
}

void PlaceholderImpl::pretty_print(std::ostream& stream) const {
  stream << "horizon::nn::Placeholder(fused into "
         << (group->add < 0 ? group->base_name() : group->add_name()) << ')';
}

Operands resolve_operands(const GroupPointer& group, const at::Tensor& x, const at::Tensor& y,
                          bool live_statistics) {
  TORCH_CHECK_VALUE(group != nullptr,
                    "add: a fused add must be placed by fuse_modules, which ties it to the slot of "
                    "its convolution; got one that was built by hand");
  const PendingImpl* first = own_operand(group, x);
  const PendingImpl* second = own_operand(group, y);
  TORCH_CHECK_VALUE(first != nullptr || second != nullptr, group->add_name(),
                    ".add: one operand must be the result of ", group->base_name(),
                    ", which is fused into it, got two other tensors: hand that result to the add "
                    "unchanged, or leave ",
                    group->add_name(), " out of the fused list");
  for (const PendingImpl* link : {first, second}) {
    if (link != nullptr) link->spend();
  }
  if (first == nullptr) return {second->source(), x, second->call().output_size};
  if (second == nullptr) return {first->source(), y, first->call().output_size};
  TORCH_CHECK_VALUE(first == second || (first->source().is_same(second->source()) &&
                                        first->call().output_size == second->call().output_size &&
                                        !(group->has_norm && live_statistics)),
                    group->add_name(), ".add: both operands are results of ", group->base_name(),
                    ", from two calls: a fused ", group->base_name(),
                    " is computed once for each add; leave it out of the fused list");
  return {first->source(), std::nullopt, first->call().output_size};
}

}  // namespace horizon::nn
