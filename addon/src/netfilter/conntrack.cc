#include "netfilter/conntrack.h"

#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <sys/socket.h>

#include <algorithm>

namespace podwire::netlink {

namespace {

// Flags of CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS (net/netfilter/nf_internals.h of the kernel).
constexpr uint32_t kFilterSource = 1 << 0;
constexpr uint32_t kFilterDestination = 1 << 1;
constexpr uint32_t kFilterProtocol = 1 << 3;
constexpr uint32_t kFilterDestinationPort = 1 << 5;

using Place = ConntrackFilter::Place;

bool DecodeIp(ByteView nest, ConntrackTuple& tuple) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == CTA_IP_V4_SRC || attribute->type == CTA_IP_V6_SRC) {
      tuple.source = IpAddress::Of(attribute->payload);
    }
    if (attribute->type == CTA_IP_V4_DST || attribute->type == CTA_IP_V6_DST) {
      tuple.destination = IpAddress::Of(attribute->payload);
    }
  }
  return !reader.Malformed();
}

std::optional<uint16_t> Port(const Attribute& attribute) {
  const auto port = attribute.U16();
  return port ? std::optional(ntohs(*port)) : std::nullopt;
}

bool DecodeProtocol(ByteView nest, ConntrackTuple& tuple) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == CTA_PROTO_NUM) tuple.protocol = attribute->U8();
    if (attribute->type == CTA_PROTO_SRC_PORT) tuple.source_port = Port(*attribute);
    if (attribute->type == CTA_PROTO_DST_PORT) tuple.destination_port = Port(*attribute);
  }
  return !reader.Malformed();
}

std::optional<ConntrackTuple> DecodeTuple(ByteView nest) {
  ConntrackTuple tuple;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == CTA_TUPLE_IP && !DecodeIp(attribute->payload, tuple)) return std::nullopt;
    if (attribute->type == CTA_TUPLE_PROTO && !DecodeProtocol(attribute->payload, tuple)) return std::nullopt;
  }
  if (reader.Malformed()) return std::nullopt;
  return tuple;
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
    const auto tuple = DecodeTuple(attribute->payload);
    if (!tuple) return std::nullopt;
    (type == CTA_TUPLE_REPLY ? entry.reply : entry.original) = *tuple;
  }
  if (reader.Malformed()) return std::nullopt;
  return entry;
}

void Encode(const ConntrackEntry& entry, MessageWriter& writer) {
  WriteHeader(entry.family, writer);
  WriteAttributes(writer, entry.identity);
}

namespace {

// Whether the kernel is to compare the address. It takes IPv6 addresses that are the same for different ones (seen on
// Linux 6.18).
bool ComparesAddress(const ConntrackFilter& filter) { return filter.address && filter.address->family == AF_INET; }

// One direction of a filter, and the fields of it that count.
uint32_t EncodeTuple(const ConntrackFilter& filter, bool reply, MessageWriter& writer) {
  const bool has_address = ComparesAddress(filter) && reply == (filter.place == Place::kReplySource);
  const bool has_protocol = !reply && filter.protocol;
  if (!has_address && !has_protocol) return 0;
  uint32_t flags = 0;
  const size_t tuple = writer.OpenNest((reply ? CTA_TUPLE_REPLY : CTA_TUPLE_ORIG) | NLA_F_NESTED);
  if (has_address) {
    const bool source = filter.place != Place::kOriginalDestination;
    const size_t ip = writer.OpenNest(CTA_TUPLE_IP | NLA_F_NESTED);
    writer.Attribute(source ? CTA_IP_V4_SRC : CTA_IP_V4_DST, filter.address->View());
    writer.CloseNest(ip);
    flags |= source ? kFilterSource : kFilterDestination;
  }
  if (has_protocol) {
    const size_t protocol = writer.OpenNest(CTA_TUPLE_PROTO | NLA_F_NESTED);
    writer.U8(CTA_PROTO_NUM, *filter.protocol);
    flags |= kFilterProtocol;
    if (filter.destination_ports.size() == 1) {
      const uint16_t port = htons(filter.destination_ports.front());
      writer.Attribute(CTA_PROTO_DST_PORT, {reinterpret_cast<const uint8_t*>(&port), sizeof port});
      flags |= kFilterDestinationPort;
    }
    writer.CloseNest(protocol);
  }
  writer.CloseNest(tuple);
  return flags;
}

}  // namespace

void Encode(const ConntrackFilter& filter, MessageWriter& writer) {
  WriteHeader(filter.family, writer);
  const uint32_t original = EncodeTuple(filter, false, writer);
  const uint32_t reply = EncodeTuple(filter, true, writer);
  if (original == 0 && reply == 0) return;
  const size_t flags = writer.OpenNest(CTA_FILTER | NLA_F_NESTED);
  if (original != 0) writer.U32(CTA_FILTER_ORIG_FLAGS, original);
  if (reply != 0) writer.U32(CTA_FILTER_REPLY_FLAGS, reply);
  writer.CloseNest(flags);
}

bool Matches(const ConntrackEntry& entry, const ConntrackFilter& filter) {
  const auto& original = entry.original;
  if (filter.protocol && original.protocol != filter.protocol) return false;
  const auto& ports = filter.destination_ports;
  if (!ports.empty() &&
      !(original.destination_port && std::binary_search(ports.begin(), ports.end(), *original.destination_port))) {
    return false;
  }
  if (!filter.address) return true;
  const auto& address = *filter.address;
  std::optional<Place> first;
  if (Same(entry.reply.source, address)) first = Place::kReplySource;
  if (Same(original.source, address)) first = Place::kOriginalSource;
  if (Same(original.destination, address)) first = Place::kOriginalDestination;
  return first && (!ComparesAddress(filter) || *first == filter.place);
}

std::vector<ConntrackFilter> ByPlace(const ConntrackFilter& filter) {
  std::vector<ConntrackFilter> filters = {filter};
  if (!ComparesAddress(filter)) return filters;
  for (const auto place : {Place::kOriginalSource, Place::kReplySource}) {
    filters.push_back(filter);
    filters.back().place = place;
  }
  return filters;
}

}  // namespace podwire::netlink
