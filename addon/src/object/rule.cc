#include "object/rule.h"

#include <linux/fib_rules.h>

namespace podwire::netlink {

namespace {

bool DecodeAttribute(const Attribute& attribute, Rule& rule) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case FRA_DST:
      return Assign(rule.destination, IpAddress::From(rule.family, attribute.payload));
    case FRA_SRC:
      return Assign(rule.source, IpAddress::From(rule.family, attribute.payload));
    case FRA_PRIORITY:
      return Assign(rule.priority, attribute.U32());
    case FRA_TABLE:
      return Assign(rule.table, attribute.U32());
    case FRA_PROTOCOL:
      return Assign(rule.protocol, attribute.U8());
    default:
      return false;
  }
}

}  // namespace

std::optional<Rule> DecodeRule(ByteView payload) {
  const auto header = TakeHeader<fib_rule_hdr>(payload);
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
  while (const auto attribute = reader.Next()) {
    if (!DecodeAttribute(*attribute, rule)) rule.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return rule;
}

void Encode(const Rule& rule, MessageWriter& writer) {
  fib_rule_hdr header{};
  header.family = rule.family;
  header.dst_len = rule.destination_length;
  header.src_len = rule.source_length;
  header.tos = rule.type_of_service;
  header.table = rule.header_table;
  header.action = rule.action;
  header.flags = rule.flags;
  writer.Header(header);
  if (rule.destination) writer.Attribute(FRA_DST, rule.destination->View());
  if (rule.source) writer.Attribute(FRA_SRC, rule.source->View());
  if (rule.priority) writer.U32(FRA_PRIORITY, *rule.priority);
  if (rule.table) writer.U32(FRA_TABLE, *rule.table);
  if (rule.protocol) writer.U8(FRA_PROTOCOL, *rule.protocol);
  WriteAttributes(writer, rule.unknown_attributes);
}

}  // namespace podwire::netlink
