#include "object/ip_tunnel.h"

#include <linux/if.h>
#include <linux/if_tunnel.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

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
