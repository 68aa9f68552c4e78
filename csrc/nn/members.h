#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace horizon::nn {

/// A fresh module with the settings of `module` (a base or a batch norm) whose tensors have its
/// shapes, dtypes and device. torch's random state stays as it is.
std::shared_ptr<torch::nn::Module> blank_like(const torch::nn::Module& module);

/// The same for a base, with a bias.
std::shared_ptr<torch::nn::Module> blank_with_bias(const torch::nn::Module& base);

/// Undoes what Module::to(dtype) does to a batch norm's counter, which stays int64.
void restore_counter(torch::nn::Module* batch_norm);

}  // namespace horizon::nn
