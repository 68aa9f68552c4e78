#include "ops/cpu/thread_scratch.h"

#include <memory>
#include <new>

namespace horizon::ops {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(uint8_t* p) const { ::operator delete(p, kAlignment); }
};

}  // namespace

uint8_t* thread_scratch(int64_t bytes) {
  thread_local std::unique_ptr<uint8_t, Free> memory;
  thread_local int64_t size = 0;
  if (size < bytes) {
    // Freed first, so that the two never exist at once.
    memory.reset();
    size = 0;
    memory.reset(static_cast<uint8_t*>(::operator new(static_cast<size_t>(bytes), kAlignment)));
    size = bytes;
  }
  return memory.get();
}

}  // namespace horizon::ops
