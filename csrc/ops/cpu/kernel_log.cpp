#include "ops/cpu/kernel_log.h"

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string_view>
#include <unordered_set>

namespace horizon::ops {

bool kernel_log_enabled() {
  static const bool value = [] {
    const char* text = std::getenv("HORIZON_LOG");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
  }();
  return value;
}

void log_kernel(const std::string& line) {
  static std::mutex mutex;
  static std::unordered_set<std::string> seen;
  const std::lock_guard<std::mutex> lock(mutex);
  if (seen.insert(line).second) std::cerr << "horizon: " << line << std::endl;
}

}  // namespace horizon::ops
