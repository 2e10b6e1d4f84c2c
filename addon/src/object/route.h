#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// RTM_NEWROUTE and its kin: `rtmsg` and RTA_* of linux/rtnetlink.h.
struct Route {
  uint8_t family = 0;
  uint8_t destination_length = 0;
  uint8_t source_length = 0;
  uint8_t type_of_service = 0;
  // Tables up to 255; higher numbers are in `table`.
  uint8_t header_table = 0;
  uint8_t protocol = 0;
  uint8_t scope = 0;
  uint8_t type = 0;
  uint32_t flags = 0;
  std::optional<IpAddress> destination;
  std::optional<IpAddress> gateway;
  std::optional<IpAddress> preferred_source;
  std::optional<uint32_t> table;
  std::optional<uint32_t> priority;
  std::optional<uint32_t> output;
  std::vector<OtherAttribute> unknown_attributes;
};

// Nothing when the payload is malformed.
std::optional<Route> DecodeRoute(ByteView payload);
void Encode(const Route& route, MessageWriter& writer);

}  // namespace podwire::netlink
