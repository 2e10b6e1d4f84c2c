#pragma once

#include <cstdint>
#include <optional>

#include "object/ip_address.h"
#include "socket/netns.h"
#include "socket/result.h"

namespace podwire::netlink {

/** An address of a link, and whether the node forwards by it, which IPv6 neighbours are told as well. */
struct Announcement {
  uint32_t link_index = 0;
  IpAddress address{};
  bool router = false;
};

/**
 * Tells all neighbours of a link that an address is at the link's own MAC address. Waits for nobody: whoever knew another one
 * takes this, whoever knew none takes no notice. EOPNOTSUPP for what is no Ethernet, ENETDOWN for a link that is down.
 */
std::optional<KernelError> announce_address(const Netns& netns, const Announcement& announcement);

}  // namespace podwire::netlink
