// The network configuration from stdin: handed on as it is, but for one key that says where to.
#pragma once

#include <optional>

#include "buffer.h"
#include "deadline.h"
#include "failure.h"

namespace podwire {

struct SocketChoice {
  Buffer path;
  bool is_configuration_json = false;
};

// Reads stdin to its end. A closed stdin is an empty configuration, for the resident plugin to judge.
std::optional<Failure> ReadConfiguration(const Deadline& deadline, Buffer& configuration);

// The path in the top-level key `socket`, else kDefaultSocket. Without valid JSON it is the default too: the resident
// reports what is wrong with the configuration better than the shim could.
std::optional<Failure> ChooseSocket(std::string_view configuration, SocketChoice& choice);

}  // namespace podwire
