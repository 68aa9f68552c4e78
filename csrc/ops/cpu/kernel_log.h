#pragma once

#include <string>

namespace horizon::ops {

/// Whether HORIZON_LOG is set, and not to 0; read once.
bool kernel_log_enabled();

/// Writes "horizon: `line`" to standard error, each line once in the life of the process.
void log_kernel(const std::string& line);

}  // namespace horizon::ops
