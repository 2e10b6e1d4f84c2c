#include "object/route.h"

#include <linux/rtnetlink.h>

namespace podwire::netlink {

namespace {

bool decode_attribute(const Attribute& attribute, Route& route) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case RTA_DST:
      return assign(route.destination, IpAddress::from(route.family, attribute.payload));
    case RTA_GATEWAY:
      return assign(route.gateway, IpAddress::from(route.family, attribute.payload));
    case RTA_PREFSRC:
      return assign(route.preferred_source, IpAddress::from(route.family, attribute.payload));
    case RTA_TABLE:
      return assign(route.table, attribute.u32());
    case RTA_PRIORITY:
      return assign(route.priority, attribute.u32());
    case RTA_OIF:
      return assign(route.output, attribute.u32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Route> decode_route(ByteView payload) {
  const auto header = take_header<rtmsg>(payload);
  if (!header) return std::nullopt;
  Route route;
  route.family = header->rtm_family;
  route.destination_length = header->rtm_dst_len;
  route.source_length = header->rtm_src_len;
  route.type_of_service = header->rtm_tos;
  route.header_table = header->rtm_table;
  route.protocol = header->rtm_protocol;
  route.scope = header->rtm_scope;
  route.type = header->rtm_type;
  route.flags = header->rtm_flags;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    if (!decode_attribute(*attribute, route)) route.others.push_back(keep(*attribute));
  }
  if (reader.malformed()) return std::nullopt;
  return route;
}

void encode(const Route& route, MessageWriter& writer) {
  rtmsg header{};
  header.rtm_family = route.family;
  header.rtm_dst_len = route.destination_length;
  header.rtm_src_len = route.source_length;
  header.rtm_tos = route.type_of_service;
  header.rtm_table = route.header_table;
  header.rtm_protocol = route.protocol;
  header.rtm_scope = route.scope;
  header.rtm_type = route.type;
  header.rtm_flags = route.flags;
  writer.header(header);
  if (route.destination) writer.attribute(RTA_DST, route.destination->view());
  if (route.gateway) writer.attribute(RTA_GATEWAY, route.gateway->view());
  if (route.preferred_source) writer.attribute(RTA_PREFSRC, route.preferred_source->view());
  if (route.table) writer.u32(RTA_TABLE, *route.table);
  if (route.priority) writer.u32(RTA_PRIORITY, *route.priority);
  if (route.output) writer.u32(RTA_OIF, *route.output);
  write_others(writer, route.others);
}

}  // namespace podwire::netlink
