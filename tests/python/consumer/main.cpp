// Runs a TorchScript file that uses the project's operators, without a reference to any symbol
// that would keep the library linked.
#include <horizon_plugin.h>
#include <torch/script.h>

#include <iostream>

int main(int argc, char* argv[]) {
  if (argc != 2) return 2;
  torch::jit::Module module = torch::jit::load(argv[1]);
  const at::Tensor y = module.forward({torch::arange(-4.0, 5.0)}).toTensor();
  for (int64_t i = 0; i < y.numel(); ++i) std::cout << y[i].item<float>() << ' ';
  std::cout << '\n';
}
