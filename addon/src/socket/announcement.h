#pragma once

#include <cstdint>
#include <optional>

#include "object/ip_address.h"
#include "socket/netns.h"
#include "socket/result.h"

namespace podwire::netlink {

// An address of a link; for IPv6 also whether the node forwards by it, which the advertisement includes.
struct Announcement {
  uint32_t link_index = 0;
  IpAddress address{};
  bool router = false;
};

// Announces to all neighbours of a link that an address has the link's own MAC address. Does not wait: there is no
// answer. Neighbours with an entry update it; the rest ignore the message. EOPNOTSUPP for a link that is not Ethernet,
// ENETDOWN for a link that is down.
std::optional<KernelError> AnnounceAddress(const Netns& netns, const Announcement& announcement);

}  // namespace podwire::netlink
