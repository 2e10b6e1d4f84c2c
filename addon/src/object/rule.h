#pragma once

#include <linux/fib_rules.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

// RTM_NEWRULE and its kin.
struct Rule {
  // `table` of the header has tables up to 255; higher numbers are in `table`.
  fib_rule_hdr header{};
  std::optional<IpAddress> destination;
  std::optional<IpAddress> source;
  std::optional<uint32_t> priority;
  std::optional<uint32_t> table;
  std::optional<uint8_t> protocol;
  std::vector<OtherAttribute> unknown_attributes;

  template <typename Self, typename Field>
  static void Fields(Self& rule, Field& field) {
    field(FRA_DST, rule.destination);
    field(FRA_SRC, rule.source);
    field(FRA_PRIORITY, rule.priority);
    field(FRA_TABLE, rule.table);
    field(FRA_PROTOCOL, rule.protocol);
  }
};

}  // namespace podwire::netlink
