#include "object/vxlan.h"

#include <arpa/inet.h>
#include <linux/if_link.h>

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

}  // namespace podwire::netlink
