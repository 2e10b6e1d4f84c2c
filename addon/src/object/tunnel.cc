#include "object/tunnel.h"

#include <arpa/inet.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/if_tunnel.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

std::optional<uint16_t> FromNetwork(const std::optional<uint16_t>& value) {
  if (!value) return std::nullopt;
  return ntohs(*value);
}

std::optional<bool> Truth(const std::optional<uint8_t>& value) {
  if (!value) return std::nullopt;
  return *value != 0;
}

void DecodeAttribute(const Attribute& attribute, Vxlan& vxlan) {
  switch (attribute.type) {
    case IFLA_VXLAN_ID:
      vxlan.vni = attribute.U32();
      break;
    case IFLA_VXLAN_LINK:
      vxlan.parent = attribute.U32();
      break;
    case IFLA_VXLAN_GROUP:
    case IFLA_VXLAN_GROUP6:
      vxlan.group = IpAddress::Of(attribute.payload);
      break;
    case IFLA_VXLAN_LOCAL:
    case IFLA_VXLAN_LOCAL6:
      vxlan.local = IpAddress::Of(attribute.payload);
      break;
    case IFLA_VXLAN_LEARNING:
      vxlan.learning = Truth(attribute.U8());
      break;
    case IFLA_VXLAN_PORT:
      vxlan.port = FromNetwork(attribute.U16());
      break;
    case IFLA_VXLAN_COLLECT_METADATA:
      vxlan.external = attribute.U8().value_or(1) != 0;
      break;
    default:
      break;
  }
}

bool IsIpv6(const IpAddress& address) { return address.family == AF_INET6; }

void DecodeAttribute(const Attribute& attribute, IpTunnel& tunnel) {
  switch (attribute.type) {
    case IFLA_IPTUN_LINK:
      tunnel.parent = attribute.U32();
      break;
    case IFLA_IPTUN_LOCAL:
      tunnel.local = IpAddress::From(AF_INET, attribute.payload);
      break;
    case IFLA_IPTUN_REMOTE:
      tunnel.remote = IpAddress::From(AF_INET, attribute.payload);
      break;
    case IFLA_IPTUN_TTL:
      tunnel.ttl = attribute.U8();
      break;
    case IFLA_IPTUN_TOS:
      tunnel.tos = attribute.U8();
      break;
    case IFLA_IPTUN_PMTUDISC:
      if (const auto value = attribute.U8()) tunnel.path_mtu_discovery = *value != 0;
      break;
    case IFLA_IPTUN_PROTO:
      tunnel.protocol = attribute.U8();
      break;
    default:
      break;
  }
}

}  // namespace

Vxlan DecodeVxlan(const std::vector<OtherAttribute>& data) {
  Vxlan vxlan;
  for (const auto& other : data) DecodeAttribute(View(other), vxlan);
  return vxlan;
}

std::vector<OtherAttribute> EncodeVxlan(const Vxlan& vxlan) {
  AttributeList list;
  if (vxlan.parent) list.Add(IFLA_VXLAN_LINK, *vxlan.parent);
  if (vxlan.vni) list.Add(IFLA_VXLAN_ID, *vxlan.vni);
  if (vxlan.group) list.Add(IsIpv6(*vxlan.group) ? IFLA_VXLAN_GROUP6 : IFLA_VXLAN_GROUP, vxlan.group->View());
  if (vxlan.local) list.Add(IsIpv6(*vxlan.local) ? IFLA_VXLAN_LOCAL6 : IFLA_VXLAN_LOCAL, vxlan.local->View());
  if (vxlan.learning) list.Add(IFLA_VXLAN_LEARNING, uint8_t{*vxlan.learning});
  if (vxlan.external) list.Add(IFLA_VXLAN_COLLECT_METADATA, uint8_t{1});
  if (vxlan.port) list.Add(IFLA_VXLAN_PORT, htons(*vxlan.port));
  return list.Take();
}

IpTunnel DecodeIpTunnel(const std::vector<OtherAttribute>& data) {
  IpTunnel tunnel;
  for (const auto& other : data) DecodeAttribute(View(other), tunnel);
  return tunnel;
}

std::vector<OtherAttribute> EncodeIpTunnel(const IpTunnel& tunnel) {
  AttributeList list;
  if (tunnel.parent) list.Add(IFLA_IPTUN_LINK, *tunnel.parent);
  if (tunnel.local) list.Add(IFLA_IPTUN_LOCAL, tunnel.local->View());
  if (tunnel.remote) list.Add(IFLA_IPTUN_REMOTE, tunnel.remote->View());
  if (tunnel.ttl) list.Add(IFLA_IPTUN_TTL, *tunnel.ttl);
  if (tunnel.tos) list.Add(IFLA_IPTUN_TOS, *tunnel.tos);
  if (tunnel.path_mtu_discovery) list.Add(IFLA_IPTUN_PMTUDISC, uint8_t{*tunnel.path_mtu_discovery});
  if (tunnel.protocol) list.Add(IFLA_IPTUN_PROTO, *tunnel.protocol);
  return list.Take();
}

}  // namespace podwire::netlink
