// Takes a network of Python's through the C++ front end, stage by stage.
//
// usage: parity IN.pt OUT.pt
//
// IN.pt: {"float", "prepared": state dicts of the network of tests/cpp/nn_models.h, "training":
// bool, "preset": int, "input": images}. OUT.pt: {"classes": {name: fused class}, "fused",
// "converted": states, "outputs": [fused, prepared in eval mode, converted]}.
#include <torch/serialize.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "nn_models.h"

namespace {

using State = std::map<std::string, at::Tensor>;

c10::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  return torch::pickle_load(bytes);
}

c10::Dict<std::string, at::Tensor> to_dict(const State& state) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : state) dict.insert(name, tensor.detach());
  return dict;
}

// The prepared model shares the tensors of the fused one.
State copied(State state) {
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  return state;
}

void run(const std::string& in_path, const std::string& out_path) {
  const c10::IValue in = read(in_path);
  const auto given = in.toGenericDict();
  const at::Tensor input = given.at("input").toTensor();
  const auto preset = static_cast<horizon::quant::Preset>(given.at("preset").toInt());
  horizon::nn::Sequential net = horizon::test::make_net();
  horizon::load_state_dict(*net, horizon::to_state(given.at("float")));
  net->train(given.at("training").toBool());
  horizon::fuse_modules(*net, horizon::test::kNetGroups);
  c10::Dict<std::string, std::string> classes;
  for (const auto& entry : net->named_modules()) {
    const auto* fused = dynamic_cast<const horizon::nn::FusedImpl*>(entry.value().get());
    if (fused != nullptr) classes.insert(entry.key(), fused->spec().name());
  }
  net->eval();
  c10::List<at::Tensor> outputs;
  const auto fused_state = to_dict(copied(horizon::state_dict(*net)));
  outputs.push_back(net->forward(input).detach());
  horizon::prepare(*net, horizon::default_qat_qconfig(preset),
                   {{"head", horizon::default_qat_out_qconfig(preset)}});
  horizon::load_state_dict(*net, horizon::to_state(given.at("prepared")));
  outputs.push_back(net->forward(input).detach());
  horizon::convert(*net);
  outputs.push_back(net->forward(input));

  c10::impl::GenericDict out(c10::StringType::get(), c10::AnyType::get());
  out.insert("classes", classes);
  out.insert("fused", fused_state);
  out.insert("converted", to_dict(horizon::state_dict(*net)));
  out.insert("outputs", outputs);
  const std::vector<char> bytes = torch::pickle_save(out);
  std::ofstream file(out_path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
