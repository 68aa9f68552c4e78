// Runs the int8 TorchScript file of examples/python/digits_qat.py without Python.
//
// usage: run_digits MODEL.pt TEST.pt OUT.pt [BATCH]
//
// TEST.pt holds {"noisy": [N, 1, 8, 8], "clean": the same, "labels": [N]} as saved by torch.save;
// OUT.pt receives (logits, images, milliseconds).
#include <horizon_plugin.h>
#include <torch/script.h>
#include <torch/serialize.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

c10::IValue load_pickle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  return torch::pickle_load(bytes);
}

void save_pickle(const c10::IValue& value, const std::string& path) {
  const std::vector<char> bytes = torch::pickle_save(value);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot write " + path);
}

void run(const std::string& model_path, const std::string& test_path, const std::string& out_path,
         int64_t batch) {
  const c10::InferenceMode guard;
  torch::jit::Module model = torch::jit::load(model_path);
  const auto test = load_pickle(test_path).toGenericDict();
  const at::Tensor noisy = test.at("noisy").toTensor();
  const at::Tensor clean = test.at("clean").toTensor();
  const at::Tensor labels = test.at("labels").toTensor();

  std::vector<at::Tensor> logits, images;
  const std::vector<at::Tensor> parts = noisy.split(batch);
  for (const at::Tensor& part : parts) {
    const auto out = model.forward({part}).toTuple();
    logits.push_back(out->elements()[0].toTensor());
    images.push_back(out->elements()[1].toTensor());
  }
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    model.forward({parts[0]});
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }

  const at::Tensor all_logits = at::cat(logits), all_images = at::cat(images);
  const double accuracy =
      100.0 * all_logits.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
  const double mse =
      (all_images.to(at::kDouble) - clean.to(at::kDouble)).square().mean().item<double>();
  std::cout << "horizon-plugin " << horizon::version() << ": " << labels.size(0)
            << " test digits, accuracy " << accuracy << " %, PSNR " << -10.0 * std::log10(mse)
            << " dB, " << best << " ms a batch of " << parts[0].size(0) << "\n";

  save_pickle(c10::ivalue::Tuple::create(all_logits, all_images, at::scalar_tensor(best)),
              out_path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: run_digits MODEL.pt TEST.pt OUT.pt [BATCH]\n";
    return 2;
  }
  try {
    const int64_t batch = argc > 4 ? std::stoll(argv[4]) : 64;
    if (batch < 1) throw std::invalid_argument("BATCH must be at least 1");
    run(argv[1], argv[2], argv[3], batch);
  } catch (const std::exception& error) {
    std::cerr << "run_digits: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
