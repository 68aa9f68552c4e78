#pragma once

#include <cstdint>

namespace horizon::ops {

/// At least `bytes` of uninitialized memory, aligned to 64, that belongs to the calling thread and
/// is reused by its next call.
uint8_t* thread_scratch(int64_t bytes);

}  // namespace horizon::ops
