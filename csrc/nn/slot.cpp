#include "nn/slot.h"

namespace horizon::nn {

void SlotCell::set(std::shared_ptr<torch::nn::Module> child) {
  if (auto layer = std::dynamic_pointer_cast<Layer>(child)) {
    call = [layer](const at::Tensor& x) { return layer->forward(x); };
  } else {
    call = recall(child);
  }
  module = std::move(child);
}

at::Tensor Slot::operator()(const at::Tensor& input) const {
  TORCH_CHECK(cell_ != nullptr,
              "Slot: called before it was registered: call slot(name, module) "
              "in reset()");
  return cell_->call(input);
}

at::Tensor Slot::operator()(const at::Tensor& input, at::IntArrayRef output_size) const {
  return call(*ptr(), input, output_size);
}

const std::shared_ptr<torch::nn::Module>& Slot::ptr() const {
  TORCH_CHECK(cell_ != nullptr,
              "Slot: read before it was registered: call slot(name, module) in "
              "reset()");
  return cell_->module;
}

FloatFunctional::FloatFunctional() : Slot(std::make_shared<SlotCell>()) {
  cell_->set(std::make_shared<FloatFunctionalImpl>());
}

FloatFunctionalImpl* FloatFunctional::operator->() const {
  return dynamic_cast<FloatFunctionalImpl*>(cell_->module.get());
}

SlotCell* SlotOwner::find_slot(const std::string& name) const {
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : found->second.get();
}

std::shared_ptr<torch::nn::Module> SequentialImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<SequentialImpl>();
  copy->train(is_training());  // before it has children, which keep their own modes
  const auto children = named_children();
  std::size_t i = 0;
  for (const torch::nn::AnyModule& module : *this) {
    copy->push_back(children[i++].key(), module.clone(device));
  }
  return copy;
}

}  // namespace horizon::nn
