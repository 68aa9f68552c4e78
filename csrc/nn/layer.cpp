#include "nn/layer.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace horizon::nn {

at::Tensor Layer::forward_sized(const at::Tensor& /*input*/, at::IntArrayRef output_size) {
  TORCH_CHECK_VALUE(false, path.empty() ? class_name_of(*this) : path,
                    ": 'output_size' must be left out, as only transposed convolutions take it, "
                    "got ",
                    output_size);
}

void Layer::copy_state(const Layer& from, const std::optional<torch::Device>& device) {
  const torch::NoGradGuard no_grad;
  const auto copied = [&](const at::Tensor& t) {
    return device && t.device() != *device ? t.detach().to(*device) : t.detach().clone();
  };
  path = from.path;
  group = from.group;
  position = from.position;
  torch::nn::Module::train(from.is_training());
  auto parameters = named_parameters(/*recurse=*/false);
  for (const auto& entry : from.named_parameters(/*recurse=*/false)) {
    at::Tensor& target = parameters[entry.key()];
    target.set_data(copied(entry.value()));
    target.set_requires_grad(entry.value().requires_grad());
  }
  auto buffers = named_buffers(/*recurse=*/false);
  for (const auto& entry : from.named_buffers(/*recurse=*/false)) {
    buffers[entry.key()].set_data(copied(entry.value()));
  }
  for (const auto& entry : from.named_children()) {
    replace_module(entry.key(), entry.value()->clone(device));
  }
  rebind();
}

void check_defined(const at::Tensor& x, const std::string& path, const char* operand) {
  TORCH_CHECK_TYPE(x.defined(), path, ": '", operand, "' must be a tensor, got an undefined one");
}

void rethrow_named(const std::string& path) {
  const auto text = [&](const c10::Error& error) {
    return path + ": " + error.what_without_backtrace();
  };
  try {
    throw;
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, text(error));
  } catch (const c10::TypeError& error) {
    TORCH_CHECK_TYPE(false, text(error));
  } catch (const c10::NotImplementedError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, text(error));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, text(error));
  }
}

namespace {

template <class... Modules>
bool call_first(torch::nn::Module& module, const at::Tensor& input, at::Tensor& result) {
  const auto attempt = [&](auto* typed) {
    if (typed == nullptr) return false;
    result = typed->forward(input);
    return true;
  };
  return (attempt(dynamic_cast<Modules*>(&module)) || ...);
}

}  // namespace

at::Tensor call(torch::nn::Module& module, const at::Tensor& input) {
  at::Tensor result;
  const bool known =
      call_first<Layer, torch::nn::SequentialImpl, torch::nn::Conv2dImpl,
                 torch::nn::ConvTranspose2dImpl, torch::nn::LinearImpl, torch::nn::BatchNorm2dImpl,
                 torch::nn::BatchNorm1dImpl, torch::nn::ReLUImpl, torch::nn::ReLU6Impl,
                 torch::nn::HardtanhImpl>(module, input, result);
  TORCH_CHECK_TYPE(known,
                   "call: 'module' must be a layer, a Sequential or a module that can be "
                   "fused, got ",
                   class_name_of(module));
  return result;
}

at::Tensor call(torch::nn::Module& module, const at::Tensor& input, at::IntArrayRef output_size) {
  if (auto* layer = dynamic_cast<Layer*>(&module)) {
    return layer->forward_sized(input, output_size);
  }
  auto* conv = dynamic_cast<torch::nn::ConvTranspose2dImpl*>(&module);
  TORCH_CHECK_TYPE(conv != nullptr,
                   "call: 'module' must be a ConvTranspose2d, fused or not, to take an "
                   "'output_size', got ",
                   class_name_of(module));
  return conv->forward(input, output_size);
}

std::string class_name_of(const torch::nn::Module& module) {
  std::string name = module.name();
  const std::size_t scope = name.rfind("::");
  if (scope != std::string::npos) name = name.substr(scope + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace horizon::nn
