#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// One direction of a flow.
struct ConntrackTuple {
  std::optional<IpAddress> source;
  std::optional<IpAddress> destination;
  // IPPROTO_*.
  std::optional<uint8_t> protocol;
  // Ports, of protocols that have them. Network byte order on the wire, host order here.
  std::optional<uint16_t> source_port;
  std::optional<uint16_t> destination_port;
};

// IPCTNL_MSG_CT_*: `nfgenmsg` and CTA_* of linux/netfilter/nfnetlink_conntrack.h. A flow that the kernel remembers.
struct ConntrackEntry {
  uint8_t family = 0;
  ConntrackTuple original;
  ConntrackTuple reply;
  // Attributes that identify the entry: the original tuple, the zone and the id, as the kernel sent them.
  std::vector<OtherAttribute> identity;
};

// Entries that are wanted. The kernel compares since 5.8, one place of an address and one port alone, and IPv6
// addresses wrongly; an older one answers with all entries of the family. So `Matches` has the last word.
struct ConntrackFilter {
  enum class Place { kOriginalDestination, kOriginalSource, kReplySource };
  uint8_t family = 0;
  // In any place.
  std::optional<IpAddress> address = std::nullopt;
  std::optional<uint8_t> protocol = std::nullopt;
  // Any of these ports in the original direction, sorted; they need a protocol. Empty: any port.
  std::vector<uint16_t> destination_ports = {};
  // Where the kernel is to look for the address.
  Place place = Place::kOriginalDestination;
};

// Nothing when the payload is malformed.
std::optional<ConntrackEntry> DecodeConntrack(ByteView payload);
// The entry's identity, for its deletion.
void Encode(const ConntrackEntry& entry, MessageWriter& writer);
void Encode(const ConntrackFilter& filter, MessageWriter& writer);

// Whether the entry is wanted. With an address anywhere, of all places that hold it only the first counts, so that
// filters that differ in the place never match the same entry.
bool Matches(const ConntrackEntry& entry, const ConntrackFilter& filter);
// The filters that find everything together, one for each place that the kernel has to look at.
std::vector<ConntrackFilter> ByPlace(const ConntrackFilter& filter);

}  // namespace podwire::netlink
