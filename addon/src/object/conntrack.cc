#include "object/conntrack.h"

#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

// Flags of CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS (net/netfilter/nf_internals.h of the kernel).
constexpr uint32_t kFilterSource = 1 << 0;
constexpr uint32_t kFilterDestination = 1 << 1;

struct Ends {
  std::optional<IpAddress> source;
  std::optional<IpAddress> destination;
};

bool DecodeIp(ByteView nest, Ends& ends) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == CTA_IP_V4_SRC || attribute->type == CTA_IP_V6_SRC) {
      ends.source = IpAddress::Of(attribute->payload);
    }
    if (attribute->type == CTA_IP_V4_DST || attribute->type == CTA_IP_V6_DST) {
      ends.destination = IpAddress::Of(attribute->payload);
    }
  }
  return !reader.Malformed();
}

std::optional<Ends> DecodeTuple(ByteView nest) {
  Ends ends;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == CTA_TUPLE_IP && !DecodeIp(attribute->payload, ends)) return std::nullopt;
  }
  if (reader.Malformed()) return std::nullopt;
  return ends;
}

void WriteHeader(uint8_t family, MessageWriter& writer) {
  nfgenmsg header{};
  header.nfgen_family = family;
  header.version = NFNETLINK_V0;
  writer.Header(header);
}

bool Same(const std::optional<IpAddress>& one, const IpAddress& other) {
  return one && one->family == other.family && one->bytes == other.bytes;
}

}  // namespace

std::optional<ConntrackEntry> DecodeConntrack(ByteView payload) {
  const auto header = TakeHeader<nfgenmsg>(payload);
  if (!header) return std::nullopt;
  ConntrackEntry entry;
  entry.family = header->nfgen_family;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    const uint16_t type = attribute->type;
    if (type == CTA_TUPLE_ORIG || type == CTA_ZONE || type == CTA_ID) entry.identity.push_back(Keep(*attribute));
    if (type != CTA_TUPLE_ORIG && type != CTA_TUPLE_REPLY) continue;
    const auto ends = DecodeTuple(attribute->payload);
    if (!ends) return std::nullopt;
    if (type == CTA_TUPLE_REPLY) {
      entry.reply_source = ends->source;
    } else {
      entry.original_source = ends->source;
      entry.original_destination = ends->destination;
    }
  }
  if (reader.Malformed()) return std::nullopt;
  return entry;
}

void Encode(const ConntrackEntry& entry, MessageWriter& writer) {
  WriteHeader(entry.family, writer);
  WriteOthers(writer, entry.identity);
}

void Encode(const ConntrackFilter& filter, MessageWriter& writer) {
  const auto& [address, place] = filter;
  const bool reply = place == ConntrackFilter::Place::kReplySource;
  const bool source = place != ConntrackFilter::Place::kOriginalDestination;
  const bool ipv6 = address.family == AF_INET6;
  WriteHeader(address.family, writer);
  // The kernel takes IPv6 addresses that are the same for different ones (seen on Linux 6.18), so it is not to compare
  // any.
  if (ipv6) return;
  const size_t tuple = writer.OpenNest((reply ? CTA_TUPLE_REPLY : CTA_TUPLE_ORIG) | NLA_F_NESTED);
  const size_t ip = writer.OpenNest(CTA_TUPLE_IP | NLA_F_NESTED);
  writer.Attribute(source ? CTA_IP_V4_SRC : CTA_IP_V4_DST, address.View());
  writer.CloseNest(ip);
  writer.CloseNest(tuple);
  const size_t flags = writer.OpenNest(CTA_FILTER | NLA_F_NESTED);
  writer.U32(reply ? CTA_FILTER_REPLY_FLAGS : CTA_FILTER_ORIG_FLAGS, source ? kFilterSource : kFilterDestination);
  writer.CloseNest(flags);
}

bool Concerns(const ConntrackEntry& entry, const IpAddress& address) {
  return Same(entry.original_source, address) || Same(entry.original_destination, address) ||
         Same(entry.reply_source, address);
}

}  // namespace podwire::netlink
