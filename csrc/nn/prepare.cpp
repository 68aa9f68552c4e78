#include "nn/prepare.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "fuse/text.h"
#include "nn/converted.h"
#include "nn/places.h"
#include "nn/stubs.h"
#include "nn/unary.h"

namespace horizon {
namespace {

using nn::Layer;
using nn::Place;
using LayerPointer = std::shared_ptr<Layer>;

template <class Type>
const Type* exactly(const torch::nn::Module& module) {
  return typeid(module) == typeid(Type) ? static_cast<const Type*>(&module) : nullptr;
}

bool is_prepared(const torch::nn::Module& module) {
  return exactly<nn::PreparedImpl>(module) != nullptr ||
         exactly<nn::PreparedFunctionalImpl>(module) != nullptr ||
         exactly<nn::PreparedUnaryImpl>(module) != nullptr ||
         exactly<nn::PreparedBatchNormImpl>(module) != nullptr ||
         exactly<nn::PreparedQuantStubImpl>(module) != nullptr ||
         exactly<nn::PreparedDeQuantStubImpl>(module) != nullptr;
}

bool is_converted(const torch::nn::Module& module) {
  return exactly<nn::ConvertedImpl>(module) != nullptr ||
         exactly<nn::ConvertedFunctionalImpl>(module) != nullptr ||
         exactly<nn::ConvertedUnaryImpl>(module) != nullptr ||
         exactly<nn::ConvertedBatchNormImpl>(module) != nullptr ||
         exactly<nn::ConvertedQuantStubImpl>(module) != nullptr ||
         exactly<nn::ConvertedDeQuantStubImpl>(module) != nullptr;
}

// --- prepare --------------------------------------------------------------------------------

LayerPointer with_quantized_output(const std::string& path, const QConfig& qconfig,
                                   const LayerPointer& layer) {
  TORCH_CHECK_VALUE(qconfig.quantize_output, "prepare: ", path,
                    ": 'quantize_output' must be true for a layer without a weight, got false: a "
                    "high-precision output is for convolution and linear layers");
  return layer;
}

/// The prepared form of a module, or null if it has none.
LayerPointer prepared_form(const Place& place, const QConfig& qconfig) {
  const torch::nn::Module& module = *place.child;
  const std::string path = place.path();
  LayerPointer layer;
  if (const auto* fused = exactly<nn::FusedImpl>(module)) {
    layer = std::make_shared<nn::PreparedImpl>(*fused, qconfig);
  } else if (const fuse::Kind base = nn::base_kind(module); base != fuse::Kind::kOther) {
    const nn::FusedImpl alone({base, false, false, fuse::Activation::kNone}, place.child, nullptr);
    layer = std::make_shared<nn::PreparedImpl>(alone, qconfig);
  } else if (exactly<nn::FloatFunctionalImpl>(module) != nullptr) {
    layer =
        with_quantized_output(path, qconfig, std::make_shared<nn::PreparedFunctionalImpl>(qconfig));
  } else if (const auto* stub = exactly<nn::QuantStubImpl>(module)) {
    layer = nn::named("prepare: " + path, [&] {
      return std::make_shared<nn::PreparedQuantStubImpl>(qconfig, stub->fixed());
    });
    layer = with_quantized_output(path, qconfig, layer);
  } else if (exactly<nn::DeQuantStubImpl>(module) != nullptr) {
    layer = std::make_shared<nn::PreparedDeQuantStubImpl>();
  } else if (exactly<torch::nn::BatchNorm2dImpl>(module) != nullptr ||
             exactly<torch::nn::BatchNorm1dImpl>(module) != nullptr) {
    layer = with_quantized_output(
        path, qconfig, std::make_shared<nn::PreparedBatchNormImpl>(place.child, qconfig));
  } else if (nn::UnaryOp unary = nn::unary_op(module); unary.on_floats) {
    layer = with_quantized_output(
        path, qconfig, std::make_shared<nn::PreparedUnaryImpl>(std::move(unary), qconfig));
  } else if (nn::PassingOp passing = nn::passing_op(module); passing.on_floats) {
    layer = std::make_shared<nn::PassingImpl>(std::move(passing));
  }
  if (layer == nullptr) return nullptr;
  layer->path = path;
  if (const auto* source = dynamic_cast<const Layer*>(&module)) {
    layer->group = source->group;
    layer->position = source->position;
  }
  // A prepared group has its modes from its parts: a batch norm among them may be in eval mode.
  if (exactly<nn::PreparedImpl>(*layer) == nullptr) layer->train(module.is_training());
  return layer;
}

std::optional<QConfig> qconfig_of(const std::string& path, const QConfig& qconfig,
                                  const QConfigs& overrides) {
  std::optional<QConfig> found = qconfig;
  std::size_t longest = 0;
  for (const auto& [prefix, setting] : overrides) {
    const bool holds = path == prefix || path.starts_with(prefix + ".");
    if (holds && prefix.size() >= longest) {
      found = setting;
      longest = prefix.size();
    }
  }
  return found;
}

void check_overrides(const std::vector<Place>& places, const QConfigs& overrides) {
  for (const auto& [prefix, setting] : overrides) {
    const bool known = std::ranges::any_of(
        places, [&prefix = prefix](const Place& place) { return place.path() == prefix; });
    TORCH_CHECK_VALUE(known, "prepare: 'overrides' must name modules of the model, got '", prefix,
                      "'");
  }
}

/// Follows the modules of a Sequential in order; what other modules compute is their own affair.
class SequenceCheck {
 public:
  using Forms = std::unordered_map<const torch::nn::Module*, LayerPointer>;
  explicit SequenceCheck(const Forms& forms) : forms_(forms) {}

  void run(const torch::nn::SequentialImpl& sequence, const std::string& path) {
    for (const auto& entry : sequence.named_children()) {
      const std::string child = path.empty() ? entry.key() : path + "." + entry.key();
      visit(*entry.value(), child);
    }
  }

 private:
  void visit(const torch::nn::Module& module, const std::string& path) {
    if (const auto* nested = dynamic_cast<const torch::nn::SequentialImpl*>(&module)) {
      run(*nested, path);
      return;
    }
    if (exactly<nn::QuantStubImpl>(module) != nullptr) quantized_ = true;
    if (exactly<nn::DeQuantStubImpl>(module) != nullptr) quantized_ = false;
    const bool leaf = module.children().empty();
    const bool known = forms_.contains(&module) || dynamic_cast<const Layer*>(&module) != nullptr;
    TORCH_CHECK_VALUE(!quantized_ || !leaf || known, "prepare: ", path, " (",
                      nn::class_name_of(module),
                      ") has no quantized form or is left float, but stands on quantized data: "
                      "put a DeQuantStub before it");
  }

  const Forms& forms_;
  bool quantized_ = false;
};

// --- convert --------------------------------------------------------------------------------

LayerPointer converted_form(const torch::nn::Module& module) {
  if (const auto* group = exactly<nn::PreparedImpl>(module)) {
    return std::make_shared<nn::ConvertedImpl>(*group);
  }
  if (const auto* functional = exactly<nn::PreparedFunctionalImpl>(module)) {
    return std::make_shared<nn::ConvertedFunctionalImpl>(*functional);
  }
  if (const auto* unary = exactly<nn::PreparedUnaryImpl>(module)) {
    return std::make_shared<nn::ConvertedUnaryImpl>(*unary);
  }
  if (const auto* bn = exactly<nn::PreparedBatchNormImpl>(module)) {
    return std::make_shared<nn::ConvertedBatchNormImpl>(*bn);
  }
  if (const auto* stub = exactly<nn::PreparedQuantStubImpl>(module)) {
    return std::make_shared<nn::ConvertedQuantStubImpl>(*stub);
  }
  if (const auto* stub = exactly<nn::PreparedDeQuantStubImpl>(module)) {
    auto layer = std::make_shared<nn::ConvertedDeQuantStubImpl>(stub->output_dtype());
    layer->path = stub->path;
    return layer;
  }
  return nullptr;
}

void warn_of_quantizers(torch::nn::Module& model) {
  std::vector<std::string> off, unseen;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    const auto* quantizer = dynamic_cast<const nn::FakeQuantizeImpl*>(entry.value().get());
    if (quantizer == nullptr) continue;
    const std::string path = entry.key().substr(0, entry.key().rfind('.'));
    if (!quantizer->fake_quant_enabled) off.push_back(path);
    if (quantizer->never_observed()) unseen.push_back(path);
  }
  if (!off.empty()) {
    TORCH_WARN("convert: fake-quant is off in ", fuse::joined(off),
               ": the converted model quantizes there all the same; call set_fake_quantize(model, "
               "FakeQuantState::kQat) and validate first");
  }
  if (!unseen.empty()) {
    TORCH_WARN("convert: no range was ever observed in ", fuse::joined(unseen),
               " (scale 1 is used): train or calibrate the prepared model first, or load its "
               "state");
  }
}

void check_replaceable(const char* call, const Place& place) {
  const std::string obstacle = nn::replace_obstacle(place);
  TORCH_CHECK_VALUE(obstacle.empty(), call, ": '", place.path(), "' ", obstacle);
}

}  // namespace

void prepare(torch::nn::Module& model, const QConfig& qconfig, const QConfigs& overrides) {
  const c10::InferenceMode mode(nn::is_inference_model(model));
  nn::refuse_null_children("prepare", model);
  const std::vector<Place> places = nn::places_of(model);
  TORCH_CHECK_VALUE(!places.empty() && dynamic_cast<const Layer*>(&model) == nullptr,
                    "prepare: 'model' must contain the layers, got a single ",
                    nn::class_name_of(model),
                    ": wrap it in Sequential(QuantStub(), layer, DeQuantStub())");
  check_overrides(places, overrides);
  SequenceCheck::Forms forms;
  for (const Place& place : places) {
    TORCH_CHECK_VALUE(!is_prepared(*place.child) && !is_converted(*place.child),
                      "prepare: 'model' must be a float model, got one already ",
                      is_prepared(*place.child) ? "prepared" : "converted");
    if (forms.contains(place.child.get())) {
      check_replaceable("prepare", place);
      continue;
    }
    const bool always = exactly<nn::DeQuantStubImpl>(*place.child) != nullptr;
    const std::optional<QConfig> own = qconfig_of(place.path(), qconfig, overrides);
    if (!own && !always) continue;
    LayerPointer form = prepared_form(place, own.value_or(qconfig));
    if (form == nullptr) continue;
    check_replaceable("prepare", place);
    forms.emplace(place.child.get(), std::move(form));
  }
  TORCH_CHECK_VALUE(!forms.empty(),
                    "prepare: 'model' must hold a module that can be quantized, got none");
  if (const auto* sequence = dynamic_cast<const torch::nn::SequentialImpl*>(&model)) {
    SequenceCheck(forms).run(*sequence, "");
  }
  for (const Place& place : places) {
    const auto form = forms.find(place.child.get());
    if (form != forms.end()) nn::replace(place, form->second);
  }
}

void convert(torch::nn::Module& model) {
  const c10::InferenceMode mode(nn::is_inference_model(model));
  nn::refuse_null_children("convert", model);
  const std::vector<Place> places = nn::places_of(model);
  SequenceCheck::Forms forms;
  bool converted = false;
  for (const Place& place : places) {
    converted = converted || is_converted(*place.child);
    if (forms.contains(place.child.get()) || !is_prepared(*place.child)) continue;
    LayerPointer form = converted_form(*place.child);
    check_replaceable("convert", place);
    form->train(false);
    forms.emplace(place.child.get(), std::move(form));
  }
  TORCH_CHECK_VALUE(!forms.empty(), "convert: 'model' must be prepared, got ",
                    converted ? "one already converted" : "a float model: call prepare first");
  warn_of_quantizers(model);
  for (const Place& place : places) {
    const auto form = forms.find(place.child.get());
    if (form != forms.end()) nn::replace(place, form->second);
  }
  model.eval();
}

void set_fake_quantize(torch::nn::Module& model, nn::FakeQuantState state) {
  nn::refuse_null_children("set_fake_quantize", model);
  bool any = false;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* quantizer = dynamic_cast<nn::FakeQuantizeImpl*>(module.get())) {
      quantizer->set_state(state);
      any = true;
    } else if (auto* group = dynamic_cast<nn::PreparedImpl*>(module.get())) {
      group->weight_fake_quant_enabled = state != nn::FakeQuantState::kCalibration;
      any = true;
    }
  }
  TORCH_CHECK_VALUE(any,
                    "set_fake_quantize: 'model' must be prepared, got one without quantizers: "
                    "call prepare first (a converted model has no states)");
}

void freeze_bn_stats(torch::nn::Module& model, bool frozen) {
  nn::refuse_null_children("freeze_bn_stats", model);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* prepared = dynamic_cast<nn::PreparedImpl*>(module.get())) {
      prepared->freeze_statistics(frozen);
    } else if (auto* fused = dynamic_cast<nn::FusedImpl*>(module.get())) {
      fused->freeze_statistics(frozen);
    } else if (auto* bn = dynamic_cast<nn::PreparedBatchNormImpl*>(module.get())) {
      bn->freeze_statistics(frozen);
    }
  }
}

}  // namespace horizon
