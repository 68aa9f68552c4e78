#pragma once

#include <string>
#include <vector>

#include "fuse/tree.h"

namespace horizon::fuse {

/// One step of a run of the model: a module that ran, or a function or tensor method.
struct Call {
  /// The module that ran; kNoIndex for a function, a tensor method or a read of an attribute.
  int node = kNoIndex;
  /// What ran: "+", "relu", "shape"; of a FloatFunctional the method ("add"); else empty.
  std::string op;
  /// The module whose forward did this; 0 is the model itself.
  int owner = 0;
  /// Values read and produced, as numbers from 0 on. A tensor that is changed in place is a new
  /// value from then on.
  std::vector<int> inputs;
  std::vector<int> outputs;
  /// Memory that the call changed in place, as numbers of Value::storage.
  std::vector<int> changed;
  /// Reads no data, only what a fused module's result has as well: shape, dtype, device.
  bool metadata = false;
};

struct Value {
  /// Values that share memory have the same number.
  int storage = kNoIndex;
  /// Number of dimensions; kNoIndex if unknown.
  int dimensions = kNoIndex;
};

/// What a front end saw when it ran a model once (or read it off a graph), in order.
struct Record {
  std::vector<Call> calls;
  /// Indexed by the numbers in Call::inputs and Call::outputs.
  std::vector<Value> values;
  /// Values that the model returned.
  std::vector<int> results;
  /// Values that outlive the run elsewhere, such as in an attribute of a module.
  std::vector<int> kept;
};

}  // namespace horizon::fuse
