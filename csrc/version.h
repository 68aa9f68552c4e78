#pragma once

namespace horizon {

// The version of the library that was loaded, as in "0.1.0".
const char* version();

}  // namespace horizon
