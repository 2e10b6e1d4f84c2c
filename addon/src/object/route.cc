#include "object/route.h"

#include <linux/rtnetlink.h>

namespace podwire::netlink {

namespace {

bool DecodeAttribute(const Attribute& attribute, Route& route) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case RTA_DST:
      return Assign(route.destination, IpAddress::From(route.family, attribute.payload));
    case RTA_GATEWAY:
      return Assign(route.gateway, IpAddress::From(route.family, attribute.payload));
    case RTA_PREFSRC:
      return Assign(route.preferred_source, IpAddress::From(route.family, attribute.payload));
    case RTA_TABLE:
      return Assign(route.table, attribute.U32());
    case RTA_PRIORITY:
      return Assign(route.priority, attribute.U32());
    case RTA_OIF:
      return Assign(route.output, attribute.U32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Route> DecodeRoute(ByteView payload) {
  const auto header = TakeHeader<rtmsg>(payload);
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
  while (const auto attribute = reader.Next()) {
    if (!DecodeAttribute(*attribute, route)) route.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return route;
}

void Encode(const Route& route, MessageWriter& writer) {
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
  writer.Header(header);
  if (route.destination) writer.Attribute(RTA_DST, route.destination->View());
  if (route.gateway) writer.Attribute(RTA_GATEWAY, route.gateway->View());
  if (route.preferred_source) writer.Attribute(RTA_PREFSRC, route.preferred_source->View());
  if (route.table) writer.U32(RTA_TABLE, *route.table);
  if (route.priority) writer.U32(RTA_PRIORITY, *route.priority);
  if (route.output) writer.U32(RTA_OIF, *route.output);
  WriteAttributes(writer, route.unknown_attributes);
}

}  // namespace podwire::netlink
