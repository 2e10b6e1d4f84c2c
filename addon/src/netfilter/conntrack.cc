#include "netfilter/conntrack.h"

#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <tuple>

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

bool IsBefore(const IpAddress& one, const IpAddress& other) {
  return std::tie(one.family, one.bytes) < std::tie(other.family, other.bytes);
}

// Addresses for which filtered lists take the kernel less time than one list of everything.
constexpr size_t kFilteredMax = 2;

constexpr size_t kPackedHead = 40;

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
    entry.expected = entry.expected || type == CTA_TUPLE_MASTER;
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

ConntrackEnds::ConntrackEnds(std::vector<IpAddress> addresses) : addresses_(std::move(addresses)) {
  std::sort(addresses_.begin(), addresses_.end(), IsBefore);
  addresses_.erase(std::unique(addresses_.begin(), addresses_.end(), Same), addresses_.end());
}

std::vector<ConntrackFilter> ConntrackEnds::Lists() const {
  std::vector<ConntrackFilter> lists;
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    const auto is_of_family = [&](const IpAddress& address) { return address.family == family; };
    const auto count = std::count_if(addresses_.begin(), addresses_.end(), is_of_family);
    if (count == 0) continue;
    if (family == AF_INET6 || static_cast<size_t>(count) > kFilteredMax) {
      lists.push_back({family});
      continue;
    }
    for (const auto& address : addresses_) {
      if (address.family != family) continue;
      for (const auto place : {Place::kOriginalSource, Place::kReplySource}) {
        lists.push_back({family, address});
        lists.back().place = place;
      }
    }
  }
  return lists;
}

bool ConntrackEnds::Matches(const ConntrackEntry& entry, const ConntrackFilter& list) const {
  if (entry.expected) return false;
  if (!list.address) return Contains(entry.original.source) || Contains(entry.reply.source);
  if (list.place == Place::kOriginalSource) return Same(entry.original.source, *list.address);
  return Same(entry.reply.source, *list.address) && !Contains(entry.original.source);
}

bool ConntrackEnds::Contains(const std::optional<IpAddress>& address) const {
  return address && std::binary_search(addresses_.begin(), addresses_.end(), *address, IsBefore);
}

std::vector<uint8_t> Pack(const std::vector<ConntrackEntry>& entries) {
  std::vector<uint8_t> bytes;
  for (const auto& entry : entries) {
    const auto& [source, destination] = std::tie(entry.original.source, entry.reply.source);
    if (!source || !destination) continue;
    MessageWriter writer;
    WriteAttributes(writer, entry.identity);
    const auto& identity = writer.Bytes();
    uint8_t head[kPackedHead] = {};
    const uint32_t size = htonl(static_cast<uint32_t>(kPackedHead + identity.size()));
    const uint16_t port = htons(entry.reply.source_port.value_or(0));
    std::memcpy(head, &size, sizeof size);
    head[4] = entry.family == AF_INET ? 4 : 6;
    head[5] = entry.original.protocol.value_or(0);
    std::memcpy(head + 6, &port, sizeof port);
    std::memcpy(head + 8, source->bytes.data(), source->bytes.size());
    std::memcpy(head + 24, destination->bytes.data(), destination->bytes.size());
    bytes.insert(bytes.end(), head, head + sizeof head);
    bytes.insert(bytes.end(), identity.begin(), identity.end());
  }
  return bytes;
}

std::optional<std::vector<ConntrackEntry>> Unpack(ByteView bytes) {
  std::vector<ConntrackEntry> entries;
  while (bytes.size > 0) {
    uint32_t size = 0;
    if (bytes.size < kPackedHead) return std::nullopt;
    std::memcpy(&size, bytes.data, sizeof size);
    size = ntohl(size);
    if (size < kPackedHead || size > bytes.size) return std::nullopt;
    ConntrackEntry& entry = entries.emplace_back();
    entry.family = bytes.data[4] == 4 ? AF_INET : AF_INET6;
    AttributeReader reader({bytes.data + kPackedHead, size - kPackedHead});
    while (const auto attribute = reader.Next()) entry.identity.push_back(Keep(*attribute));
    // Without an identity the kernel would delete all entries.
    if (reader.Malformed() || entry.identity.empty()) return std::nullopt;
    bytes = {bytes.data + size, bytes.size - size};
  }
  return entries;
}

}  // namespace podwire::netlink
