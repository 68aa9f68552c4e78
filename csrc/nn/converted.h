#pragma once

#include "nn/prepared.h"

namespace horizon::nn {

/// A fused group as one integer operation on uint8 codes.
///
/// State: weight int8 in the float weight's shape; weight_scale fp32, bn_scale fp64 (gamma / sigma)
/// and bias fp64 (after the batch norm), one per output channel; scale and stored zero_point of the
/// output, absent for a high-precision (fp32) output. In memory the weight is a buffer
/// "packed_weight" in the order that the operator reads; files and state_dict hold "weight".
class ConvertedImpl : public FixedDtypes<LayerOf<ConvertedImpl, GroupLayer>> {
 public:
  /// With the scales that the prepared module's eval mode uses. Throws ValueError: no running
  /// statistics, constants that are not finite.
  explicit ConvertedImpl(const PreparedImpl& source);
  /// The same structure, not yet loaded.
  ConvertedImpl(GroupSpec spec, at::IntArrayRef weight_size, torch::Device device,
                bool quantizes_output, at::ScalarType output_dtype);

  at::Tensor forward(const at::Tensor& input) override { return GroupLayer::forward(input); }

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Throws ValueError for tensors of other shapes or dtypes; then nothing is changed.
  void load(torch::serialize::InputArchive& archive) override;
  void save_state(const std::string& prefix,
                  std::map<std::string, at::Tensor>& state) const override;
  void load_state(const std::string& prefix,
                  const std::map<std::string, at::Tensor>& state) override;
  std::shared_ptr<ConvertedImpl> blank() const;
  void pretty_print(std::ostream& stream) const override;
  const GroupSpec& spec() const override { return spec_; }
  /// The int8 codes: a copy of the packed ones.
  at::Tensor weight() const;

 protected:
  at::Tensor compute(const Operands& operands, bool add_relu) override;

 private:
  at::Tensor packed(const at::Tensor& codes) const;

  GroupSpec spec_;
  at::ScalarType output_dtype_;
  std::vector<int64_t> weight_size_;
  at::Tensor packed_, weight_scale_, bn_scale_, bias_, scale_, zero_point_;
};

}  // namespace horizon::nn
