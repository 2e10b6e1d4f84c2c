#include "object/conntrack.h"

#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

/** Flags of CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS (net/netfilter/nf_internals.h of the kernel). */
constexpr uint32_t kFilterSource = 1 << 0;
constexpr uint32_t kFilterDestination = 1 << 1;

struct Ends {
  std::optional<IpAddress> source;
  std::optional<IpAddress> destination;
};

bool decode_ip(ByteView nest, Ends& ends) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.next()) {
    if (attribute->type == CTA_IP_V4_SRC || attribute->type == CTA_IP_V6_SRC) {
      ends.source = IpAddress::of(attribute->payload);
    }
    if (attribute->type == CTA_IP_V4_DST || attribute->type == CTA_IP_V6_DST) {
      ends.destination = IpAddress::of(attribute->payload);
    }
  }
  return !reader.malformed();
}

std::optional<Ends> decode_tuple(ByteView nest) {
  Ends ends;
  AttributeReader reader(nest);
  while (const auto attribute = reader.next()) {
    if (attribute->type == CTA_TUPLE_IP && !decode_ip(attribute->payload, ends)) return std::nullopt;
  }
  if (reader.malformed()) return std::nullopt;
  return ends;
}

void write_header(uint8_t family, MessageWriter& writer) {
  nfgenmsg header{};
  header.nfgen_family = family;
  header.version = NFNETLINK_V0;
  writer.header(header);
}

bool same(const std::optional<IpAddress>& one, const IpAddress& other) {
  return one && one->family == other.family && one->bytes == other.bytes;
}

}  // namespace

std::optional<ConntrackEntry> decode_conntrack(ByteView payload) {
  const auto header = take_header<nfgenmsg>(payload);
  if (!header) return std::nullopt;
  ConntrackEntry entry;
  entry.family = header->nfgen_family;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    const uint16_t type = attribute->type;
    if (type == CTA_TUPLE_ORIG || type == CTA_ZONE || type == CTA_ID) entry.identity.push_back(keep(*attribute));
    if (type != CTA_TUPLE_ORIG && type != CTA_TUPLE_REPLY) continue;
    const auto ends = decode_tuple(attribute->payload);
    if (!ends) return std::nullopt;
    if (type == CTA_TUPLE_REPLY) {
      entry.reply_source = ends->source;
    } else {
      entry.original_source = ends->source;
      entry.original_destination = ends->destination;
    }
  }
  if (reader.malformed()) return std::nullopt;
  return entry;
}

void encode(const ConntrackEntry& entry, MessageWriter& writer) {
  write_header(entry.family, writer);
  write_others(writer, entry.identity);
}

void encode(const ConntrackFilter& filter, MessageWriter& writer) {
  const auto& [address, place] = filter;
  const bool reply = place == ConntrackFilter::Place::kReplySource;
  const bool source = place != ConntrackFilter::Place::kOriginalDestination;
  const bool ipv6 = address.family == AF_INET6;
  write_header(address.family, writer);
  // The kernel takes IPv6 addresses that are the same for different ones (seen on Linux 6.18), so it is not to compare any.
  if (ipv6) return;
  const size_t tuple = writer.open_nest((reply ? CTA_TUPLE_REPLY : CTA_TUPLE_ORIG) | NLA_F_NESTED);
  const size_t ip = writer.open_nest(CTA_TUPLE_IP | NLA_F_NESTED);
  writer.attribute(source ? CTA_IP_V4_SRC : CTA_IP_V4_DST, address.view());
  writer.close_nest(ip);
  writer.close_nest(tuple);
  const size_t flags = writer.open_nest(CTA_FILTER | NLA_F_NESTED);
  writer.u32(reply ? CTA_FILTER_REPLY_FLAGS : CTA_FILTER_ORIG_FLAGS, source ? kFilterSource : kFilterDestination);
  writer.close_nest(flags);
}

bool concerns(const ConntrackEntry& entry, const IpAddress& address) {
  return same(entry.original_source, address) || same(entry.original_destination, address) ||
         same(entry.reply_source, address);
}

}  // namespace podwire::netlink
