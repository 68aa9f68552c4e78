#include "version.h"

namespace horizon {

const char* version() { return HORIZON_VERSION; }

}  // namespace horizon
