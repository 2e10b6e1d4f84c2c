#include "object/rule.h"

#include <linux/fib_rules.h>

namespace podwire::netlink {

namespace {

bool decode_attribute(const Attribute& attribute, Rule& rule) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case FRA_DST:
      return assign(rule.destination, IpAddress::from(rule.family, attribute.payload));
    case FRA_SRC:
      return assign(rule.source, IpAddress::from(rule.family, attribute.payload));
    case FRA_PRIORITY:
      return assign(rule.priority, attribute.u32());
    case FRA_TABLE:
      return assign(rule.table, attribute.u32());
    case FRA_PROTOCOL:
      return assign(rule.protocol, attribute.u8());
    default:
      return false;
  }
}

}  // namespace

std::optional<Rule> decode_rule(ByteView payload) {
  const auto header = take_header<fib_rule_hdr>(payload);
  if (!header) return std::nullopt;
  Rule rule;
  rule.family = header->family;
  rule.destination_length = header->dst_len;
  rule.source_length = header->src_len;
  rule.type_of_service = header->tos;
  rule.header_table = header->table;
  rule.action = header->action;
  rule.flags = header->flags;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    if (!decode_attribute(*attribute, rule)) rule.others.push_back(keep(*attribute));
  }
  if (reader.malformed()) return std::nullopt;
  return rule;
}

void encode(const Rule& rule, MessageWriter& writer) {
  fib_rule_hdr header{};
  header.family = rule.family;
  header.dst_len = rule.destination_length;
  header.src_len = rule.source_length;
  header.tos = rule.type_of_service;
  header.table = rule.header_table;
  header.action = rule.action;
  header.flags = rule.flags;
  writer.header(header);
  if (rule.destination) writer.attribute(FRA_DST, rule.destination->view());
  if (rule.source) writer.attribute(FRA_SRC, rule.source->view());
  if (rule.priority) writer.u32(FRA_PRIORITY, *rule.priority);
  if (rule.table) writer.u32(FRA_TABLE, *rule.table);
  if (rule.protocol) writer.u8(FRA_PROTOCOL, *rule.protocol);
  write_others(writer, rule.others);
}

}  // namespace podwire::netlink
