#pragma once

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>

#include "nn/fake_quantize.h"
#include "nn/qconfig.h"

namespace horizon {

/// Settings by path for `prepare`: they hold for the module and all below it; nullopt leaves it
/// float. The longest path counts.
using QConfigs = std::map<std::string, std::optional<QConfig>>;

/// Puts quantizers into a float model, in place, usually after fuse_modules.
///
/// Fused modules, Conv2d, ConvTranspose2d, Linear, BatchNorm1d, BatchNorm2d, FloatFunctional,
/// AvgPool2d, AdaptiveAvgPool2d, ReLU6 and the stubs get a prepared form that shares their tensors;
/// ReLU, MaxPool2d, Flatten, Dropout and Identity hand the grid of their input on. Every one of
/// them must stand in a Sequential, ModuleList, ModuleDict or a slot of a custom module
/// (nn/slot.h). In training the model then trains with fake-quant; in eval mode it runs the
/// arithmetic of the converted model.
///
/// Throws ValueError or TypeError, and changes nothing: a module that cannot be replaced, a path in
/// `overrides` that names no module, a model that is prepared already, or a module between the
/// stubs of a Sequential that has no quantized form.
void prepare(torch::nn::Module& model, const QConfig& qconfig = {}, const QConfigs& overrides = {});

/// Makes a prepared model its integer form, in place and in eval mode; `clone` it first to keep the
/// prepared one. The result computes, to the bit, what the prepared model computes in eval mode.
///
/// Throws ValueError, and changes nothing: not prepared, a batch norm without running statistics,
/// constants that are not finite. Warns of ranges that were never observed and of fake-quant that
/// is off.
void convert(torch::nn::Module& model);

/// Puts every quantizer of a prepared model into `state`. Throws ValueError for other models.
void set_fake_quantize(torch::nn::Module& model, nn::FakeQuantState state);

/// Stops (or resumes) the running statistics of the fused and prepared batch norms of a model;
/// gamma and beta still train. Lasts through `train()` calls.
void freeze_bn_stats(torch::nn::Module& model, bool frozen = true);

}  // namespace horizon
