#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "socket/namespace.h"

namespace podwire::netlink {

struct SysctlWrite {
  std::string path;
  std::string value;
  // The reply has the value before; nothing is written when that cannot be read.
  bool read_previous = false;
};

// One step of a sequence.
struct Step {
  std::shared_ptr<Namespace> within;
  std::variant<Request, SysctlWrite> action;
  // Its failure does not end the sequence.
  bool optional = false;
};

// Runs steps one after the other, in any namespaces, up to the first failure of one that is not optional; later ones
// have ECANCELED. For one thread of the pool; steps inside a foreign namespace run on a separate thread, consecutive
// ones of one namespace on the same.
std::vector<Reply> RunSequence(std::vector<Step>& steps, Socket::Timeout timeout);

}  // namespace podwire::netlink
