#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "message/bytes.h"

namespace podwire::netlink {

// An IPv4 or IPv6 address, network byte order.
struct IpAddress {
  // AF_INET or AF_INET6.
  uint8_t family;
  std::array<uint8_t, 16> bytes;

  ByteView View() const;
  std::string Text() const;

  // An attribute's payload; nothing when the length is not that of the family.
  static std::optional<IpAddress> From(uint8_t family, ByteView payload);
  // A payload whose length says the family; nothing when it is that of none.
  static std::optional<IpAddress> Of(ByteView payload);
  static std::optional<IpAddress> Parse(const std::string& text);
};

}  // namespace podwire::netlink
