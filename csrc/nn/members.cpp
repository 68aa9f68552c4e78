#include "nn/members.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "nn/group.h"

namespace horizon::nn {
namespace {

/// Modules draw their initial weights when they are constructed.
class KeepRandomState {
 public:
  KeepRandomState() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

std::shared_ptr<torch::nn::Module> make_base(const torch::nn::Module& base, bool with_bias) {
  const KeepRandomState keep;
  std::shared_ptr<torch::nn::Module> made;
  if (const auto* conv = dynamic_cast<const torch::nn::Conv2dImpl*>(&base)) {
    auto options = conv->options;
    if (with_bias) options.bias(true);
    auto typed = torch::nn::Conv2dOptions(options.in_channels(), options.out_channels(),
                                          options.kernel_size())
                     .stride(options.stride())
                     .dilation(options.dilation())
                     .groups(options.groups())
                     .bias(options.bias())
                     .padding_mode(options.padding_mode());
    std::visit([&](const auto& padding) { typed.padding(padding); }, options.padding());
    made = std::make_shared<torch::nn::Conv2dImpl>(typed);
  } else if (const auto* transposed = dynamic_cast<const torch::nn::ConvTranspose2dImpl*>(&base)) {
    const auto& options = transposed->options;
    made = std::make_shared<torch::nn::ConvTranspose2dImpl>(
        torch::nn::ConvTranspose2dOptions(options.in_channels(), options.out_channels(),
                                          options.kernel_size())
            .stride(options.stride())
            .padding(std::get<torch::ExpandingArray<2>>(options.padding()))
            .output_padding(options.output_padding())
            .dilation(options.dilation())
            .groups(options.groups())
            .bias(with_bias || options.bias()));
  } else {
    const auto& linear = dynamic_cast<const torch::nn::LinearImpl&>(base);
    auto options = linear.options;
    made = std::make_shared<torch::nn::LinearImpl>(options.bias(with_bias || options.bias()));
  }
  const at::Tensor weight = base_tensors(base).first;
  made->to(weight.device(), weight.scalar_type());
  made->train(base.is_training());
  return made;
}

template <class Norm>
std::shared_ptr<torch::nn::Module> make_norm(const torch::nn::Module& module) {
  const auto* bn = dynamic_cast<const Norm*>(&module);
  return bn == nullptr ? nullptr : bn->clone();
}

}  // namespace

std::shared_ptr<torch::nn::Module> blank_like(const torch::nn::Module& module) {
  if (auto bn = make_norm<torch::nn::BatchNorm2dImpl>(module)) return bn;
  if (auto bn = make_norm<torch::nn::BatchNorm1dImpl>(module)) return bn;
  return make_base(module, false);
}

std::shared_ptr<torch::nn::Module> blank_with_bias(const torch::nn::Module& base) {
  return make_base(base, true);
}

void restore_counter(torch::nn::Module* batch_norm) {
  if (batch_norm == nullptr) return;
  at::Tensor count = norm_tensors(*batch_norm).num_batches_tracked;
  if (count.defined() && count.scalar_type() != at::kLong) count.set_data(count.to(at::kLong));
}

}  // namespace horizon::nn
