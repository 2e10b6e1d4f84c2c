#include "object/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>

namespace podwire::netlink {

namespace {

size_t SizeOf(uint8_t family) { return family == AF_INET ? 4 : family == AF_INET6 ? 16 : 0; }

}  // namespace

ByteView IpAddress::View() const { return {bytes.data(), SizeOf(family)}; }

std::string IpAddress::Text() const {
  char buffer[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, bytes.data(), buffer, sizeof buffer);
  return buffer;
}

std::optional<IpAddress> IpAddress::From(uint8_t family, ByteView payload) {
  if (payload.size == 0 || payload.size != SizeOf(family)) return std::nullopt;
  IpAddress address{family, {}};
  std::copy_n(payload.data, payload.size, address.bytes.begin());
  return address;
}

std::optional<IpAddress> IpAddress::Of(ByteView payload) {
  return From(payload.size == SizeOf(AF_INET) ? AF_INET : AF_INET6, payload);
}

std::optional<IpAddress> IpAddress::Parse(const std::string& text) {
  const uint8_t family = text.find(':') == std::string::npos ? AF_INET : AF_INET6;
  IpAddress address{family, {}};
  if (inet_pton(family, text.c_str(), address.bytes.data()) != 1) return std::nullopt;
  return address;
}

}  // namespace podwire::netlink
