// Quantization-aware training without Python: trains a residual network on handwritten digits in
// float, fuses it, trains on with fake-quant, converts it to int8 and prints what each stage gets
// right.
//
// usage: train_digits DIGITS.pt [EPOCHS] [MODEL.pt]
//
// The data, {"images": [N, 1, 8, 8] in [0, 1], "labels": [N]}, comes from one line of Python:
//   python -c "import torch, sklearn.datasets as d; b = d.load_digits(); torch.save({'images':
//   torch.tensor(b.images).float()[:, None] / 16, 'labels': torch.tensor(b.target)}, 'digits.pt')"
// MODEL.pt receives the int8 model.
#include <horizon_nn.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace hn = horizon::nn;
namespace tn = torch::nn;

/// relu(bn(conv(x)) + x). What stands in a slot can be replaced; the code stays as it is.
struct BlockImpl : hn::Fusable<BlockImpl> {
  explicit BlockImpl(int64_t width) : channels(width) { reset(); }

  void reset() override {
    conv =
        slot("conv", tn::Conv2d(tn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)));
    bn = slot("bn", tn::BatchNorm2d(channels));
    relu = slot("relu", tn::ReLU());
    add = functional("add");
  }

  torch::Tensor forward(torch::Tensor x) { return relu(add->add(bn(conv(x)), x)); }

  int64_t channels;
  hn::Slot conv, bn, relu;
  hn::FloatFunctional add;
};
TORCH_MODULE(Block);

struct Digits {
  torch::Tensor images, labels;
};

/// Every fifth digit is kept for the test.
std::pair<Digits, Digits> read_digits(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  const auto data = torch::pickle_load(bytes).toGenericDict();
  const torch::Tensor images = data.at("images").toTensor();
  const torch::Tensor labels = data.at("labels").toTensor();
  const torch::Tensor test = torch::arange(labels.size(0)).remainder(5).eq(0);
  const auto pick = [&](const torch::Tensor& mask) {
    return Digits{images.index({mask}), labels.index({mask})};
  };
  return {pick(test.logical_not()), pick(test)};
}

hn::Sequential make_net() {
  hn::Sequential net;
  net->push_back("quant", hn::QuantStub());
  net->push_back("conv", tn::Conv2d(tn::Conv2dOptions(1, 16, 3).padding(1).bias(false)));
  net->push_back("bn", tn::BatchNorm2d(16));
  net->push_back("relu", tn::ReLU6());
  net->push_back("block", Block(16));
  net->push_back("pool", tn::MaxPool2d(2));
  net->push_back("flatten", tn::Flatten());
  net->push_back("head", tn::Linear(16 * 4 * 4, 10));
  net->push_back("dequant", hn::DeQuantStub());
  return net;
}

void train(hn::Sequential net, const Digits& digits, int64_t epochs, double rate) {
  torch::optim::Adam optimizer(net->parameters(), rate);
  net->train();
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const torch::Tensor& batch : torch::randperm(digits.labels.size(0)).split(64)) {
      const torch::Tensor logits = net->forward(digits.images.index({batch}));
      optimizer.zero_grad();
      tn::functional::cross_entropy(logits, digits.labels.index({batch})).backward();
      optimizer.step();
    }
  }
  net->eval();
}

double accuracy(const torch::Tensor& logits, const Digits& digits) {
  return 100.0 * logits.argmax(1).eq(digits.labels).to(torch::kDouble).mean().item<double>();
}

int run(const std::string& data, int64_t epochs, const std::string& model_path) {
  torch::manual_seed(0);
  const auto [training, test] = read_digits(data);
  hn::Sequential net = make_net();
  const auto logits_of = [&images = test.images](hn::Sequential model) {
    const torch::NoGradGuard no_grad;
    return model->forward(images);
  };

  train(net, training, epochs, 3e-3);
  std::cout << "float: accuracy " << accuracy(logits_of(net), test) << " %\n";

  net->train();  // in train mode the batch norms stay alive inside the fused modules
  horizon::fuse_modules(
      *net, {{"conv", "bn", "relu"}, {"block.conv", "block.bn", "block.add", "block.relu"}});
  horizon::prepare(*net, horizon::default_qat_qconfig(),
                   {{"head", horizon::default_qat_out_qconfig()}});
  train(net, training, epochs, 1e-3);
  const torch::Tensor qat = logits_of(net);
  std::cout << "QAT, eval mode: accuracy " << accuracy(qat, test) << " %\n";

  hn::Sequential int8(std::dynamic_pointer_cast<hn::SequentialImpl>(net->clone()));
  horizon::convert(*int8);
  const torch::Tensor logits = logits_of(int8);
  const bool equal = torch::equal(logits, qat);
  std::cout << "int8: accuracy " << accuracy(logits, test) << " %\n"
            << "int8 equals QAT in eval mode to the bit: " << (equal ? "yes" : "no") << "\n";
  if (!model_path.empty()) torch::save(int8, model_path);
  return equal && accuracy(logits, test) >= 95.0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: train_digits DIGITS.pt [EPOCHS] [MODEL.pt]\n";
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? std::stoll(argv[2]) : 8, argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::cerr << "train_digits: " << error.what() << "\n";
    return 1;
  }
}
