#pragma once

#include <optional>
#include <vector>

#include "fuse/patterns.h"
#include "nn/layer.h"

namespace horizon::nn {

/// Identifies a fused group; its modules share one object.
struct FusedGroup {
  /// The members' paths at the time of the fusion, in order.
  std::vector<std::string> names;
  /// The index of the FloatFunctional among them, or -1.
  int add = -1;
  /// Whether a batch norm stands between the base and the add.
  bool has_norm = false;

  const std::string& base_name() const { return names.front(); }
  const std::string& add_name() const { return names[static_cast<std::size_t>(add)]; }
};

/// What a Placeholder stands for.
enum class PlaceholderRole {
  kIdentity,    ///< a member of a group without an add, behind the first
  kBase,        ///< the convolution or linear layer of a group with an add
  kNorm,        ///< its batch norm
  kActivation,  ///< the activation behind the add
};

/// What stands in the slot of a fused member. It computes nothing.
///
/// In a group with an add, only the add sees both operands, so it computes the whole group. The
/// base's placeholder hands its input on as a *pending* tensor, which has no data and no sizes: any
/// use but by the group's own modules throws an error that names the group.
class PlaceholderImpl : public LayerOf<PlaceholderImpl> {
 public:
  explicit PlaceholderImpl(PlaceholderRole role);

  at::Tensor forward(const at::Tensor& input) override;
  at::Tensor forward_sized(const at::Tensor& input, at::IntArrayRef output_size) override;
  std::shared_ptr<PlaceholderImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  PlaceholderRole role_;
};

/// The operands of a fused add.
struct Operands {
  at::Tensor source;                 ///< the input of the group's base
  std::optional<at::Tensor> skip{};  ///< nullopt: both came through the base, the result is z + z
  std::optional<std::vector<int64_t>> output_size{};  ///< that the base was called with
};

/// Tells the base's operand of a fused add from the other one. `live_statistics`: the batch norm
/// takes the batch's own. Throws ValueError: neither operand is the base's, its batch norm was
/// skipped, its input changed in place since, its result was used before, or grad mode or autocast
/// are others than at its call.
Operands resolve_operands(const std::shared_ptr<const FusedGroup>& group, const at::Tensor& x,
                          const at::Tensor& y, bool live_statistics);

}  // namespace horizon::nn
