#pragma once

#include <linux/if_addr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

// RTM_NEWADDR and its kin.
struct Address {
  // `ifa_flags` has the low eight of the IFA_F_* bits; `flags`, where it is sent, has them all.
  ifaddrmsg header{};
  // The node's own address; IPv6 sends it only when there is a peer.
  std::optional<IpAddress> local;
  // The prefix's address: the peer's on a point-to-point link, else the node's own.
  std::optional<IpAddress> address;
  std::optional<std::string> label;
  std::optional<uint32_t> flags;
  std::vector<OtherAttribute> unknown_attributes;

  template <typename Self, typename Field>
  static void Fields(Self& address, Field& field) {
    field(IFA_LOCAL, address.local);
    field(IFA_LABEL, address.label);
    field(IFA_FLAGS, address.flags);
    field(IFA_ADDRESS, address.address);
  }
};

}  // namespace podwire::netlink
