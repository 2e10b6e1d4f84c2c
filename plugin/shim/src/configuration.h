// Reads the network configuration from stdin, and the key `socket` of it. It is forwarded unchanged.
#pragma once

#include <optional>

#include "deadline.h"
#include "failure.h"
#include "text/buffer.h"

namespace podwire {

struct SocketChoice {
  Buffer path;
  bool is_configuration_object = false;  // a JSON object; the readers of its keys reject anything else
};

// Reads stdin to its end. A closed stdin is an empty configuration, which the resident plugin rejects.
std::optional<Failure> ReadConfiguration(const Deadline& deadline, Buffer& configuration);

// The cniVersion of the answer to VERSION: the configuration's, or kOwnVersion if stdin has none. VERSION needs no
// configuration, so it does not wait for a terminal, and at most kVersionInputMs for a stdin that does not end.
Buffer ReadRequestedVersion();

// The path in the top-level key `socket`, else kDefaultSocket. Without a JSON object it is the default too: the
// resident reports errors of the configuration better than the shim could.
std::optional<Failure> ChooseSocket(std::string_view configuration, SocketChoice& choice);

// The cniVersion of the configuration, or kOwnVersion if it is missing or invalid.
Buffer StatedVersion(std::string_view configuration);

}  // namespace podwire
