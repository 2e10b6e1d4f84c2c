#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

/** What IFLA_INFO_DATA holds for an IPIP device: IFLA_IPTUN_* of linux/if_tunnel.h. */
struct IpTunnel {
  /** The device that tunnel packets leave by. */
  std::optional<uint32_t> parent;
  std::optional<IpAddress> local;
  std::optional<IpAddress> remote;
  std::optional<uint8_t> ttl;
  std::optional<uint8_t> tos;
  std::optional<bool> path_mtu_discovery;
  /** What is inside: 4 for IPv4, 0 for anything. */
  std::optional<uint8_t> protocol;
};

/** Attributes that are absent, unknown or of a wrong length are left out. */
IpTunnel decode_ip_tunnel(const std::vector<OtherAttribute>& data);
std::vector<OtherAttribute> encode_ip_tunnel(const IpTunnel& tunnel);

}  // namespace podwire::netlink
