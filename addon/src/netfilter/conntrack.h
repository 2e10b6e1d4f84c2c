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
  // Another connection has announced this one: it is RELATED.
  bool expected = false;
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

// Connections with an end among some addresses. The ends are as rules of the hook `forward` see them: the source
// before its translation, and the destination after it.
class ConntrackEnds {
 public:
  explicit ConntrackEnds(std::vector<IpAddress> addresses);

  // The lists that have all of them together. Few IPv4 addresses take a list for each place of each address, which the
  // kernel filters since 5.8; other addresses take a list of everything.
  std::vector<ConntrackFilter> Lists() const;
  // Whether the entry is wanted from this list; each entry is wanted from one list. An entry that another connection
  // has announced is never wanted: no rule judges it.
  bool Matches(const ConntrackEntry& entry, const ConntrackFilter& list) const;

 private:
  bool Contains(const std::optional<IpAddress>& address) const;

  // Sorted.
  std::vector<IpAddress> addresses_;
};

// Entries in a form that JavaScript splits without the netlink protocol: for each entry 40 bytes, and its identity as
// attributes. Bytes 0 to 3: size of both; 4: 4 or 6; 5: protocol; 6 and 7: port of the destination, 0 for none; 8 to
// 23: source; 24 to 39: destination. Numbers are in network byte order, and the ends are as in `ConntrackEnds`.
std::vector<uint8_t> Pack(const std::vector<ConntrackEntry>& entries);
// Entries with the family and the identity alone; nothing when the bytes are not of that form.
std::optional<std::vector<ConntrackEntry>> Unpack(ByteView bytes);

}  // namespace podwire::netlink
