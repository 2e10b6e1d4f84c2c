#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// IPCTNL_MSG_CT_*: `nfgenmsg` and CTA_* of linux/netfilter/nfnetlink_conntrack.h. A flow that the kernel remembers.
struct ConntrackEntry {
  uint8_t family = 0;
  std::optional<IpAddress> original_source;
  std::optional<IpAddress> original_destination;
  std::optional<IpAddress> reply_source;
  // What says which entry is meant: the original tuple, the zone and the id, as they were sent.
  std::vector<OtherAttribute> identity;
};

// Entries with an address in one place, which the kernel compares (since 5.8); of IPv6 all entries, as it compares
// wrongly.
struct ConntrackFilter {
  enum class Place { kOriginalSource, kOriginalDestination, kReplySource };
  IpAddress address;
  Place place;
};

// Nothing when the payload is malformed.
std::optional<ConntrackEntry> DecodeConntrack(ByteView payload);
// The entry's identity, for its deletion.
void Encode(const ConntrackEntry& entry, MessageWriter& writer);
void Encode(const ConntrackFilter& filter, MessageWriter& writer);

// The address is in one of the three places. An older kernel answers a filter with everything.
bool Concerns(const ConntrackEntry& entry, const IpAddress& address);

}  // namespace podwire::netlink
