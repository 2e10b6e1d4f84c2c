#pragma once

#include <optional>
#include <string>
#include <vector>

#include "message/reader.h"

namespace podwire::netlink::test {

// A decoded message, and its encoding.
struct Decoded {
  // The known fields, as `name=value` in the order of the object's declaration.
  std::string text;
  // The message, encoded from the object: all of it, of a conntrack entry its identity, of an acknowledgement nothing.
  std::vector<uint8_t> encoded;
};

// Nothing for a message that is malformed or of a type without an object.
std::optional<Decoded> DecodeAny(const Message& message);

}  // namespace podwire::netlink::test
