#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "message/reader.h"

namespace podwire::netlink {

// NLMSG_ERROR and NLMSG_DONE: how a request, or a list, ended.
struct Acknowledgement {
  // A positive errno value; 0 for success.
  int error = 0;
  // NLMSGERR_ATTR_MSG: the kernel's words about it.
  std::optional<std::string> text;
  // NLMSGERR_ATTR_OFFS: the position in the request of the attribute that it is about.
  std::optional<uint32_t> offset = std::nullopt;
};

// Decodes NLMSG_ERROR: `nlmsgerr`, then the attributes of the extended acknowledgement behind the copy of the request.
std::optional<Acknowledgement> DecodeAcknowledgement(const Message& message);

// Decodes NLMSG_DONE, the end of a list: the error alone, which some families leave out.
std::optional<Acknowledgement> DecodeListEnd(const Message& message);

}  // namespace podwire::netlink
