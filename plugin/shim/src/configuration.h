// The network configuration from stdin: handed on as it is, but for one key that says where to.
#pragma once

#include <optional>

#include "buffer.h"
#include "deadline.h"
#include "failure.h"

namespace podwire {

struct SocketChoice {
  Buffer path;
  bool is_configuration_object = false;  // of JSON: anything else is refused by whoever looks at it
};

// Reads stdin to its end. A closed stdin is an empty configuration, for the resident plugin to judge.
std::optional<Failure> ReadConfiguration(const Deadline& deadline, Buffer& configuration);

// What VERSION is to answer as its cniVersion: the configuration's, or kOwnVersion where stdin names none. VERSION needs
// no configuration, so nobody waits for a terminal, nor longer than kVersionInputMs for a stdin that does not end.
Buffer ReadVersionAskedWith();

// The path in the top-level key `socket`, else kDefaultSocket. Without a JSON object it is the default too: the resident
// reports what is wrong with the configuration better than the shim could.
std::optional<Failure> ChooseSocket(std::string_view configuration, SocketChoice& choice);

// The version that the configuration states, or kOwnVersion where it states none that could be one.
Buffer StatedVersion(std::string_view configuration);

}  // namespace podwire
