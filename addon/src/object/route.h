#pragma once

#include <linux/rtnetlink.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

// RTM_NEWROUTE and its kin.
struct Route {
  // `rtm_table` has tables up to 255; higher numbers are in `table`.
  rtmsg header{};
  std::optional<IpAddress> destination;
  std::optional<IpAddress> gateway;
  std::optional<IpAddress> preferred_source;
  std::optional<uint32_t> table;
  std::optional<uint32_t> priority;
  std::optional<uint32_t> output;
  std::vector<OtherAttribute> unknown_attributes;

  template <typename Self, typename Field>
  static void Fields(Self& route, Field& field) {
    field(RTA_DST, route.destination);
    field(RTA_GATEWAY, route.gateway);
    field(RTA_PREFSRC, route.preferred_source);
    field(RTA_TABLE, route.table);
    field(RTA_PRIORITY, route.priority);
    field(RTA_OIF, route.output);
  }
};

}  // namespace podwire::netlink
