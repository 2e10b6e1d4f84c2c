#pragma once

#include <linux/rtnetlink.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

// RTM_NEWNEIGH and its kin. The family AF_BRIDGE makes it a forwarding entry (FDB), whose destination, on a tunnel
// device, is the IPv4 or IPv6 address of the tunnel's far end.
struct Neighbour {
  ndmsg header{};
  std::optional<IpAddress> destination;
  std::optional<std::vector<uint8_t>> mac;
  // The link as a filter of a dump; elsewhere `ndm_ifindex` says it.
  std::optional<uint32_t> filter_index;
  std::vector<OtherAttribute> unknown_attributes;

  // As `bridge` and `ip` do: first comes what the entry is looked up by.
  template <typename Self, typename Field>
  static void Fields(Self& neighbour, Field& field) {
    const bool is_fdb = neighbour.header.ndm_family == AF_BRIDGE;
    if (is_fdb) field(NDA_LLADDR, neighbour.mac);
    field(NDA_DST, neighbour.destination);
    if (!is_fdb) field(NDA_LLADDR, neighbour.mac);
    field(NDA_IFINDEX, neighbour.filter_index);
  }
};

}  // namespace podwire::netlink
