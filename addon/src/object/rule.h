#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// RTM_NEWRULE and its kin: `fib_rule_hdr` and FRA_* of linux/fib_rules.h.
struct Rule {
  uint8_t family = 0;
  uint8_t destination_length = 0;
  uint8_t source_length = 0;
  uint8_t type_of_service = 0;
  // Tables up to 255; higher numbers are in `table`.
  uint8_t header_table = 0;
  // FR_ACT_*.
  uint8_t action = 0;
  // FIB_RULE_*.
  uint32_t flags = 0;
  std::optional<IpAddress> destination;
  std::optional<IpAddress> source;
  std::optional<uint32_t> priority;
  std::optional<uint32_t> table;
  std::optional<uint8_t> protocol;
  std::vector<OtherAttribute> unknown_attributes;
};

// Nothing when the payload is malformed.
std::optional<Rule> DecodeRule(ByteView payload);
void Encode(const Rule& rule, MessageWriter& writer);

}  // namespace podwire::netlink
