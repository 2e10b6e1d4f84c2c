#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// RTM_NEWNEIGH and its kin: `ndmsg` and NDA_* of linux/neighbour.h. The family AF_BRIDGE makes it a forwarding entry
// (FDB), whose destination, on a tunnel device, is the IPv4 or IPv6 address of the tunnel's far end.
struct Neighbour {
  uint8_t family = 0;
  int32_t link_index = 0;
  uint16_t state = 0;
  uint8_t flags = 0;
  uint8_t type = 0;
  std::optional<IpAddress> destination;
  std::optional<std::vector<uint8_t>> mac;
  // The link as a filter of a dump; elsewhere `link_index` says it.
  std::optional<uint32_t> filter_index;
  std::vector<OtherAttribute> unknown_attributes;
};

// Nothing when the payload is malformed.
std::optional<Neighbour> DecodeNeighbour(ByteView payload);
void Encode(const Neighbour& neighbour, MessageWriter& writer);

}  // namespace podwire::netlink
