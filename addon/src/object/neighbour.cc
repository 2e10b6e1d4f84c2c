#include "object/neighbour.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

bool decode_attribute(const Attribute& attribute, Neighbour& neighbour) {
  if (attribute.raw_type != attribute.type) return false;
  const auto& [data, size] = attribute.payload;
  switch (attribute.type) {
    case NDA_DST:
      return assign(neighbour.destination, neighbour.family == AF_BRIDGE
                                               ? IpAddress::of(attribute.payload)
                                               : IpAddress::from(neighbour.family, attribute.payload));
    case NDA_LLADDR:
      return assign(neighbour.mac, std::optional(std::vector<uint8_t>(data, data + size)));
    case NDA_IFINDEX:
      return assign(neighbour.filter_index, attribute.u32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Neighbour> decode_neighbour(ByteView payload) {
  const auto header = take_header<ndmsg>(payload);
  if (!header) return std::nullopt;
  Neighbour neighbour;
  neighbour.family = header->ndm_family;
  neighbour.link_index = header->ndm_ifindex;
  neighbour.state = header->ndm_state;
  neighbour.flags = header->ndm_flags;
  neighbour.type = header->ndm_type;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    if (!decode_attribute(*attribute, neighbour)) neighbour.others.push_back(keep(*attribute));
  }
  if (reader.malformed()) return std::nullopt;
  return neighbour;
}

void encode(const Neighbour& neighbour, MessageWriter& writer) {
  ndmsg header{};
  header.ndm_family = neighbour.family;
  header.ndm_ifindex = neighbour.link_index;
  header.ndm_state = neighbour.state;
  header.ndm_flags = neighbour.flags;
  header.ndm_type = neighbour.type;
  writer.header(header);
  const auto write_mac = [&] {
    if (neighbour.mac) writer.attribute(NDA_LLADDR, {neighbour.mac->data(), neighbour.mac->size()});
  };
  // As `bridge` and `ip` do: first comes what the entry is looked up by.
  if (neighbour.family == AF_BRIDGE) write_mac();
  if (neighbour.destination) writer.attribute(NDA_DST, neighbour.destination->view());
  if (neighbour.family != AF_BRIDGE) write_mac();
  if (neighbour.filter_index) writer.u32(NDA_IFINDEX, *neighbour.filter_index);
  write_others(writer, neighbour.others);
}

}  // namespace podwire::netlink
