#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// RTM_NEWADDR and its kin: `ifaddrmsg` and IFA_* of linux/if_addr.h.
struct Address {
  uint8_t family = 0;
  uint8_t prefix_length = 0;
  // The low eight of the IFA_F_* bits; IFA_FLAGS, where it is sent, has them all.
  uint8_t header_flags = 0;
  uint8_t scope = 0;
  uint32_t link_index = 0;
  // The node's own address; IPv6 sends it only when there is a peer.
  std::optional<IpAddress> local;
  // The prefix's address: the peer's on a point-to-point link, else the node's own.
  std::optional<IpAddress> address;
  std::optional<std::string> label;
  std::optional<uint32_t> flags;
  std::vector<OtherAttribute> unknown_attributes;
};

// Nothing when the payload is malformed.
std::optional<Address> DecodeAddress(ByteView payload);
void Encode(const Address& address, MessageWriter& writer);

}  // namespace podwire::netlink
