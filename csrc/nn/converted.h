#pragma once

#include "nn/prepared.h"

namespace horizon::nn {

/// A fused group as one integer operation on uint8 codes.
///
/// State: weight int8 in the float weight's shape; weight_scale fp32, bn_scale fp64 (gamma / sigma)
/// and bias fp64 (after the batch norm), one per output channel; scale and stored zero_point of the
/// output, absent for a high-precision (fp32) output.
class ConvertedImpl : public FixedDtypes<LayerOf<ConvertedImpl, GroupLayer>> {
 public:
  /// With the scales that the prepared module's eval mode uses. Throws ValueError: no running
  /// statistics, constants that are not finite.
  explicit ConvertedImpl(const PreparedImpl& source);
  /// The same structure, not yet loaded.
  ConvertedImpl(GroupSpec spec, const at::Tensor& weight_like, bool quantizes_output,
                at::ScalarType output_dtype);

  at::Tensor forward(const at::Tensor& input) override { return GroupLayer::forward(input); }

  void load(torch::serialize::InputArchive& archive) override;
  void loaded() override { pack(); }
  std::shared_ptr<ConvertedImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const GroupSpec& spec() const override { return spec_; }

 protected:
  void rebind() override { pack(); }
  at::Tensor compute(const Operands& operands, bool add_relu) override;

 private:
  /// Lays the weight out as the operator reads it; whatever writes the weight calls it.
  void pack();

  GroupSpec spec_;
  at::ScalarType output_dtype_;
  at::Tensor weight_, weight_scale_, bn_scale_, bias_, scale_, zero_point_;
  at::Tensor packed_;  // not state
};

}  // namespace horizon::nn
