#include "object/neighbour.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

bool DecodeAttribute(const Attribute& attribute, Neighbour& neighbour) {
  if (attribute.raw_type != attribute.type) return false;
  const auto& [data, size] = attribute.payload;
  switch (attribute.type) {
    case NDA_DST:
      return Assign(neighbour.destination, neighbour.family == AF_BRIDGE
                                               ? IpAddress::Of(attribute.payload)
                                               : IpAddress::From(neighbour.family, attribute.payload));
    case NDA_LLADDR:
      return Assign(neighbour.mac, std::optional(std::vector<uint8_t>(data, data + size)));
    case NDA_IFINDEX:
      return Assign(neighbour.filter_index, attribute.U32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Neighbour> DecodeNeighbour(ByteView payload) {
  const auto header = TakeHeader<ndmsg>(payload);
  if (!header) return std::nullopt;
  Neighbour neighbour;
  neighbour.family = header->ndm_family;
  neighbour.link_index = header->ndm_ifindex;
  neighbour.state = header->ndm_state;
  neighbour.flags = header->ndm_flags;
  neighbour.type = header->ndm_type;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    if (!DecodeAttribute(*attribute, neighbour)) neighbour.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return neighbour;
}

void Encode(const Neighbour& neighbour, MessageWriter& writer) {
  ndmsg header{};
  header.ndm_family = neighbour.family;
  header.ndm_ifindex = neighbour.link_index;
  header.ndm_state = neighbour.state;
  header.ndm_flags = neighbour.flags;
  header.ndm_type = neighbour.type;
  writer.Header(header);
  const auto write_mac = [&] {
    if (neighbour.mac) writer.Attribute(NDA_LLADDR, {neighbour.mac->data(), neighbour.mac->size()});
  };
  // As `bridge` and `ip` do: first comes what the entry is looked up by.
  if (neighbour.family == AF_BRIDGE) write_mac();
  if (neighbour.destination) writer.Attribute(NDA_DST, neighbour.destination->View());
  if (neighbour.family != AF_BRIDGE) write_mac();
  if (neighbour.filter_index) writer.U32(NDA_IFINDEX, *neighbour.filter_index);
  WriteAttributes(writer, neighbour.unknown_attributes);
}

}  // namespace podwire::netlink
