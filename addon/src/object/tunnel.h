#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// IFLA_INFO_DATA of a VXLAN device: IFLA_VXLAN_* of linux/if_link.h.
struct Vxlan {
  std::optional<uint32_t> vni;
  // The device that tunnel packets leave by.
  std::optional<uint32_t> parent;
  // Where packets go that no forwarding entry fits: IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6.
  std::optional<IpAddress> group;
  std::optional<IpAddress> local;
  std::optional<bool> learning;
  // UDP port of the far end. Network byte order on the wire, host order here.
  std::optional<uint16_t> port;
  // Each packet brings its own tunnel along (`external`).
  bool external = false;
};

// Attributes that are absent, unknown or of a wrong length are left out.
Vxlan DecodeVxlan(const std::vector<OtherAttribute>& data);
std::vector<OtherAttribute> EncodeVxlan(const Vxlan& vxlan);

// IFLA_INFO_DATA of an IPIP device: IFLA_IPTUN_* of linux/if_tunnel.h.
struct IpTunnel {
  // The device that tunnel packets leave by.
  std::optional<uint32_t> parent;
  std::optional<IpAddress> local;
  std::optional<IpAddress> remote;
  std::optional<uint8_t> ttl;
  std::optional<uint8_t> tos;
  std::optional<bool> path_mtu_discovery;
  // Protocol of the inner packets: 4 for IPv4, 0 for any.
  std::optional<uint8_t> protocol;
};

// Attributes that are absent, unknown or of a wrong length are left out.
IpTunnel DecodeIpTunnel(const std::vector<OtherAttribute>& data);
std::vector<OtherAttribute> EncodeIpTunnel(const IpTunnel& tunnel);

}  // namespace podwire::netlink
