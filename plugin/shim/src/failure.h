// A failure, in the terms of the CNI specification's error document.
#pragma once

#include "text/buffer.h"

namespace podwire {

// CNI specification 1.1.0, "Error": the codes that the shim itself uses.
enum class CniCode : unsigned {
  kBadEnvironment = 4,
  kInputOutput = 5,
  kDecodeFailure = 6,
  kInvalidConfiguration = 7,
  kTryAgainLater = 11,
};

// Neither text may hold bytes that a peer sent, nor the phrases "not found" and "no such file or directory": containerd
// takes a DEL whose error holds one of them for done, and the pod's address would leak.
struct Failure {
  CniCode code;
  Buffer message;  // the object and the reason
  Buffer details;  // the next step
};

}  // namespace podwire
