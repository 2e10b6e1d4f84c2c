#include "object/tunnel.h"

#include <arpa/inet.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/if_tunnel.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

std::optional<uint16_t> from_network(const std::optional<uint16_t>& value) {
  if (!value) return std::nullopt;
  return ntohs(*value);
}

std::optional<bool> truth(const std::optional<uint8_t>& value) {
  if (!value) return std::nullopt;
  return *value != 0;
}

void decode_attribute(const Attribute& attribute, Vxlan& vxlan) {
  switch (attribute.type) {
    case IFLA_VXLAN_ID:
      vxlan.vni = attribute.u32();
      break;
    case IFLA_VXLAN_LINK:
      vxlan.parent = attribute.u32();
      break;
    case IFLA_VXLAN_GROUP:
    case IFLA_VXLAN_GROUP6:
      vxlan.group = IpAddress::of(attribute.payload);
      break;
    case IFLA_VXLAN_LOCAL:
    case IFLA_VXLAN_LOCAL6:
      vxlan.local = IpAddress::of(attribute.payload);
      break;
    case IFLA_VXLAN_TTL:
      vxlan.ttl = attribute.u8();
      break;
    case IFLA_VXLAN_TOS:
      vxlan.tos = attribute.u8();
      break;
    case IFLA_VXLAN_LEARNING:
      vxlan.learning = truth(attribute.u8());
      break;
    case IFLA_VXLAN_PORT:
      vxlan.port = from_network(attribute.u16());
      break;
    case IFLA_VXLAN_UDP_CSUM:
      vxlan.udp_checksum = truth(attribute.u8());
      break;
    case IFLA_VXLAN_UDP_ZERO_CSUM6_TX:
      vxlan.udp6_zero_checksum_tx = truth(attribute.u8());
      break;
    case IFLA_VXLAN_UDP_ZERO_CSUM6_RX:
      vxlan.udp6_zero_checksum_rx = truth(attribute.u8());
      break;
    case IFLA_VXLAN_COLLECT_METADATA:
      vxlan.external = attribute.u8().value_or(1) != 0;
      break;
    default:
      break;
  }
}

bool is_ipv6(const IpAddress& address) { return address.family == AF_INET6; }

void decode_attribute(const Attribute& attribute, IpTunnel& tunnel) {
  switch (attribute.type) {
    case IFLA_IPTUN_LINK:
      tunnel.parent = attribute.u32();
      break;
    case IFLA_IPTUN_LOCAL:
      tunnel.local = IpAddress::from(AF_INET, attribute.payload);
      break;
    case IFLA_IPTUN_REMOTE:
      tunnel.remote = IpAddress::from(AF_INET, attribute.payload);
      break;
    case IFLA_IPTUN_TTL:
      tunnel.ttl = attribute.u8();
      break;
    case IFLA_IPTUN_TOS:
      tunnel.tos = attribute.u8();
      break;
    case IFLA_IPTUN_PMTUDISC:
      if (const auto value = attribute.u8()) tunnel.path_mtu_discovery = *value != 0;
      break;
    case IFLA_IPTUN_PROTO:
      tunnel.protocol = attribute.u8();
      break;
    default:
      break;
  }
}

}  // namespace

Vxlan decode_vxlan(const std::vector<OtherAttribute>& data) {
  Vxlan vxlan;
  for (const auto& other : data) decode_attribute(view(other), vxlan);
  return vxlan;
}

std::vector<OtherAttribute> encode_vxlan(const Vxlan& vxlan) {
  AttributeList list;
  if (vxlan.parent) list.add(IFLA_VXLAN_LINK, *vxlan.parent);
  if (vxlan.vni) list.add(IFLA_VXLAN_ID, *vxlan.vni);
  if (vxlan.group) list.add(is_ipv6(*vxlan.group) ? IFLA_VXLAN_GROUP6 : IFLA_VXLAN_GROUP, vxlan.group->view());
  if (vxlan.local) list.add(is_ipv6(*vxlan.local) ? IFLA_VXLAN_LOCAL6 : IFLA_VXLAN_LOCAL, vxlan.local->view());
  if (vxlan.ttl) list.add(IFLA_VXLAN_TTL, *vxlan.ttl);
  if (vxlan.tos) list.add(IFLA_VXLAN_TOS, *vxlan.tos);
  if (vxlan.learning) list.add(IFLA_VXLAN_LEARNING, uint8_t{*vxlan.learning});
  if (vxlan.udp_checksum) list.add(IFLA_VXLAN_UDP_CSUM, uint8_t{*vxlan.udp_checksum});
  if (vxlan.udp6_zero_checksum_tx) list.add(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, uint8_t{*vxlan.udp6_zero_checksum_tx});
  if (vxlan.udp6_zero_checksum_rx) list.add(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, uint8_t{*vxlan.udp6_zero_checksum_rx});
  if (vxlan.external) list.add(IFLA_VXLAN_COLLECT_METADATA, uint8_t{1});
  if (vxlan.port) list.add(IFLA_VXLAN_PORT, htons(*vxlan.port));
  return list.take();
}

IpTunnel decode_ip_tunnel(const std::vector<OtherAttribute>& data) {
  IpTunnel tunnel;
  for (const auto& other : data) decode_attribute(view(other), tunnel);
  return tunnel;
}

std::vector<OtherAttribute> encode_ip_tunnel(const IpTunnel& tunnel) {
  AttributeList list;
  if (tunnel.parent) list.add(IFLA_IPTUN_LINK, *tunnel.parent);
  if (tunnel.local) list.add(IFLA_IPTUN_LOCAL, tunnel.local->view());
  if (tunnel.remote) list.add(IFLA_IPTUN_REMOTE, tunnel.remote->view());
  if (tunnel.ttl) list.add(IFLA_IPTUN_TTL, *tunnel.ttl);
  if (tunnel.tos) list.add(IFLA_IPTUN_TOS, *tunnel.tos);
  if (tunnel.path_mtu_discovery) list.add(IFLA_IPTUN_PMTUDISC, uint8_t{*tunnel.path_mtu_discovery});
  if (tunnel.protocol) list.add(IFLA_IPTUN_PROTO, *tunnel.protocol);
  return list.take();
}

}  // namespace podwire::netlink
