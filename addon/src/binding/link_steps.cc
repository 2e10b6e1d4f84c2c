#include "binding/link_steps.h"

#include <linux/if.h>
#include <linux/rtnetlink.h>

#include "binding/fields.h"
#include "object/ip_tunnel.h"
#include "object/vxlan.h"

namespace podwire::netlink {

namespace {

/** Attributes of every new link. */
Link read_new_link(ObjectReader& reader) {
  Link link;
  link.name = reader.text("name");
  link.mac = read_mac(reader, "mac");
  link.mtu = reader.optional_number("mtuBytes");
  link.tx_queue_length = reader.optional_number("txQueueLength");
  link.tx_queues = reader.optional_number("txQueueCount");
  link.rx_queues = reader.optional_number("rxQueueCount");
  return link;
}

Request create(ObjectReader& reader, LinkInfo info) {
  Link link = read_new_link(reader);
  link.info = std::move(info);
  Request request;
  request.type = RTM_NEWLINK;
  request.flags = NLM_F_CREATE | NLM_F_EXCL;
  request.object = std::move(link);
  return request;
}

Request read_veth(ObjectReader& reader) {
  auto other_end = reader.object("peer");
  Link peer = read_new_link(other_end);
  const auto peer_namespace = read_namespace(other_end, "namespace");
  if (!peer_namespace) other_end.fail("namespace", "an open namespace");
  auto peer_netns = peer_namespace ? (*peer_namespace)->netns() : nullptr;
  if (peer_netns) peer.namespace_fd = static_cast<uint32_t>(peer_netns->fd());
  LinkInfo info;
  info.kind = "veth";
  info.peer.push_back(std::move(peer));
  Request request = create(reader, std::move(info));
  // The echo has both ends' indexes, which spares their look-up. Of a VXLAN device the kernel sends none.
  request.flags |= NLM_F_ECHO;
  request.peer_namespace = std::move(peer_netns);
  return request;
}

Request create_tunnel(ObjectReader& reader, LinkInfo info) {
  Request request = create(reader, std::move(info));
  if (const auto parent = reader.optional_object("parent")) read_selector(*parent, request);
  return request;
}

Request read_vxlan(ObjectReader& reader) {
  Vxlan vxlan;
  vxlan.vni = reader.number("vni");
  vxlan.port = static_cast<uint16_t>(reader.number("port"));
  vxlan.local = read_address(reader, "local");
  vxlan.learning = reader.flag("learning");
  vxlan.ttl = static_cast<uint8_t>(reader.number("ttl"));
  vxlan.tos = static_cast<uint8_t>(reader.number("tos"));
  vxlan.udp_checksum = reader.optional_flag("udpChecksum");
  vxlan.udp6_zero_checksum_tx = reader.optional_flag("udp6ZeroChecksumTx");
  vxlan.udp6_zero_checksum_rx = reader.optional_flag("udp6ZeroChecksumRx");
  LinkInfo info;
  info.kind = "vxlan";
  info.data = encode_vxlan(vxlan);
  return create_tunnel(reader, std::move(info));
}

Request read_ipip(ObjectReader& reader) {
  IpTunnel tunnel;
  tunnel.local = read_address(reader, "local");
  tunnel.remote = read_address(reader, "remote");
  tunnel.ttl = static_cast<uint8_t>(reader.number("ttl"));
  tunnel.tos = static_cast<uint8_t>(reader.number("tos"));
  tunnel.path_mtu_discovery = reader.flag("pathMtuDiscovery");
  LinkInfo info;
  info.kind = "ipip";
  info.data = encode_ip_tunnel(tunnel);
  return create_tunnel(reader, std::move(info));
}

}  // namespace

Request read_link_add(ObjectReader& reader) {
  const std::string kind = reader.text("kind");
  if (kind == "veth") return read_veth(reader);
  if (kind == "vxlan") return read_vxlan(reader);
  if (kind == "ipip") return read_ipip(reader);
  reader.fail("kind", "veth, vxlan or ipip");
  return {};
}

Request read_link_set(ObjectReader& reader) {
  Link link;
  if (const auto up = reader.optional_flag("up")) {
    link.flags = *up ? IFF_UP : 0;
    link.change = IFF_UP;
  }
  link.mac = read_mac(reader, "mac");
  link.mtu = reader.optional_number("mtuBytes");
  link.alias = reader.optional_text("alias");
  link.group = reader.optional_number("group");
  link.name = reader.optional_text("name");
  link.tx_queue_length = reader.optional_number("txQueueLength");
  const auto generation = reader.optional_number("addressGeneration");
  if (generation) set_address_generation(link, static_cast<uint8_t>(*generation));

  Request request;
  request.type = RTM_SETLINK;
  request.object = std::move(link);
  read_selector(reader.object("link"), request);
  // Without a new name in it, the message itself can say which link is meant.
  auto& object = std::get<Link>(request.object);
  if (!object.name) object.name = std::exchange(request.lookup, std::nullopt);
  return request;
}

Request read_link_get(ObjectReader& reader) {
  auto selector = reader.object("link");
  return get_link(selector.number("index"), selector.optional_text("name").value_or(""));
}

Request read_link_delete(ObjectReader& reader) {
  auto selector = reader.object("link");
  return delete_link(selector.number("index"), selector.optional_text("name").value_or(""));
}

}  // namespace podwire::netlink
