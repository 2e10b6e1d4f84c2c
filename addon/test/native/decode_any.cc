#include "decode_any.h"

#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/rtnetlink.h>

#include <cstdio>
#include <cstdlib>

#include "message/writer.h"
#include "object/acknowledgement.h"
#include "object/address.h"
#include "object/conntrack.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/route.h"
#include "object/rule.h"
#include "object/tunnel.h"

namespace podwire::netlink::test {

namespace {

class Fields {
 public:
  void add(const char* name, const std::string& value) { text_ += (text_.empty() ? "" : " ") + (name + ("=" + value)); }
  void add(const char* name, const std::optional<std::string>& value) {
    if (value) add(name, *value);
  }
  void add(const char* name, uint32_t value) { add(name, std::to_string(value)); }
  void add(const char* name, const std::optional<uint32_t>& value) {
    if (value) add(name, *value);
  }
  void add(const char* name, const std::optional<IpAddress>& value) {
    if (value) add(name, value->text());
  }
  void add(const char* name, const std::optional<std::vector<uint8_t>>& mac) {
    if (!mac) return;
    std::string text;
    char part[4];
    for (const uint8_t byte : *mac) {
      std::snprintf(part, sizeof part, "%s%02x", text.empty() ? "" : ":", byte);
      text += part;
    }
    add(name, text);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string describe(const Vxlan& vxlan) {
  Fields fields;
  fields.add("vni", vxlan.vni);
  fields.add("port", vxlan.port ? std::optional<uint32_t>(*vxlan.port) : std::nullopt);
  fields.add("parent", vxlan.parent);
  fields.add("group", vxlan.group);
  fields.add("local", vxlan.local);
  if (vxlan.ttl) fields.add("ttl", *vxlan.ttl);
  if (vxlan.tos) fields.add("tos", *vxlan.tos);
  if (vxlan.learning) fields.add("learning", *vxlan.learning);
  if (vxlan.udp_checksum) fields.add("csum", *vxlan.udp_checksum);
  if (vxlan.udp6_zero_checksum_tx) fields.add("zero6tx", *vxlan.udp6_zero_checksum_tx);
  if (vxlan.udp6_zero_checksum_rx) fields.add("zero6rx", *vxlan.udp6_zero_checksum_rx);
  fields.add("external", vxlan.external);
  return fields.text();
}

std::string describe(const IpTunnel& tunnel) {
  Fields fields;
  fields.add("parent", tunnel.parent);
  fields.add("local", tunnel.local);
  fields.add("remote", tunnel.remote);
  if (tunnel.ttl) fields.add("ttl", *tunnel.ttl);
  if (tunnel.tos) fields.add("tos", *tunnel.tos);
  if (tunnel.path_mtu_discovery) fields.add("pmtudisc", *tunnel.path_mtu_discovery);
  return fields.text();
}

/** The description of a tunnel is the same when it is written and read again. */
template <typename Tunnel>
std::string described_twice(const Tunnel& tunnel, const Tunnel& again) {
  if (describe(tunnel) != describe(again)) std::abort();
  return "(" + describe(tunnel) + ")";
}

std::string describe(const Link& link) {
  Fields fields;
  fields.add("index", static_cast<uint32_t>(link.index));
  fields.add("flags", link.flags);
  fields.add("name", link.name);
  fields.add("mac", link.mac);
  fields.add("mtu", link.mtu);
  if (link.alias) fields.add("alias", without_zero(*link.alias));
  fields.add("group", link.group);
  fields.add("txqlen", link.tx_queue_length);
  fields.add("txq", link.tx_queues);
  fields.add("rxq", link.rx_queues);
  if (const auto mode = address_generation(link)) fields.add("addrgenmode", *mode);
  fields.add("link", link.linked_index);
  fields.add("netnsid", link.linked_namespace);
  if (link.info) fields.add("kind", link.info->kind_name());
  if (link.info && link.info->kind_name() == "vxlan") {
    const Vxlan vxlan = decode_vxlan(link.info->data);
    fields.add("vxlan", described_twice(vxlan, decode_vxlan(encode_vxlan(vxlan))));
  }
  if (link.info && link.info->kind_name() == "ipip") {
    const IpTunnel tunnel = decode_ip_tunnel(link.info->data);
    fields.add("ipip", described_twice(tunnel, decode_ip_tunnel(encode_ip_tunnel(tunnel))));
  }
  if (link.info && !link.info->peer.empty()) fields.add("peer", "(" + describe(link.info->peer.front()) + ")");
  return fields.text();
}

std::string describe(const Address& address) {
  Fields fields;
  fields.add("family", address.family);
  fields.add("length", address.prefix_length);
  fields.add("scope", address.scope);
  fields.add("link", address.link_index);
  fields.add("local", address.local);
  fields.add("address", address.address);
  fields.add("label", address.label);
  fields.add("flags", address.flags.value_or(address.header_flags));
  return fields.text();
}

std::string describe(const Route& route) {
  Fields fields;
  fields.add("family", route.family);
  fields.add("length", route.destination_length);
  fields.add("protocol", route.protocol);
  fields.add("scope", route.scope);
  fields.add("type", route.type);
  fields.add("destination", route.destination);
  fields.add("gateway", route.gateway);
  fields.add("source", route.preferred_source);
  fields.add("table", route.table.value_or(route.header_table));
  fields.add("priority", route.priority);
  fields.add("output", route.output);
  return fields.text();
}

std::string describe(const Rule& rule) {
  Fields fields;
  fields.add("family", rule.family);
  fields.add("action", rule.action);
  fields.add("flags", rule.flags);
  fields.add("sourcelength", rule.source_length);
  fields.add("source", rule.source);
  fields.add("destinationlength", rule.destination_length);
  fields.add("destination", rule.destination);
  fields.add("priority", rule.priority);
  fields.add("table", rule.table.value_or(rule.header_table));
  if (rule.protocol) fields.add("protocol", *rule.protocol);
  return fields.text();
}

std::string describe(const Neighbour& neighbour) {
  Fields fields;
  fields.add("family", neighbour.family);
  fields.add("link", static_cast<uint32_t>(neighbour.link_index));
  fields.add("state", neighbour.state);
  fields.add("flags", neighbour.flags);
  fields.add("destination", neighbour.destination);
  fields.add("mac", neighbour.mac);
  return fields.text();
}

/** Only the identity is written, and it has the original tuple. */
std::string describe(const ConntrackEntry& entry) {
  Fields fields;
  fields.add("family", entry.family);
  fields.add("source", entry.original_source);
  fields.add("destination", entry.original_destination);
  fields.add("identity", static_cast<uint32_t>(entry.identity.size()));
  return fields.text();
}

/** Has no writer: only the kernel sends it. */
std::optional<Decoded> describe(const std::optional<Acknowledgement>& acknowledgement) {
  if (!acknowledgement) return std::nullopt;
  Fields fields;
  fields.add("errno", static_cast<uint32_t>(acknowledgement->error));
  fields.add("text", acknowledgement->text);
  return Decoded{fields.text(), {}};
}

template <typename Object>
std::optional<Decoded> there_and_back(const Message& message, const std::optional<Object>& object) {
  if (!object) return std::nullopt;
  MessageWriter writer;
  writer.begin(message.type, message.flags, message.sequence);
  encode(*object, writer);
  writer.end();
  return Decoded{describe(*object), writer.bytes()};
}

}  // namespace

std::optional<Decoded> decode_any(const Message& message) {
  switch (message.type) {
    case NLMSG_ERROR:
      return describe(decode_acknowledgement(message));
    case NLMSG_DONE:
      return describe(decode_list_end(message));
    case RTM_NEWLINK:
    case RTM_DELLINK:
    case RTM_GETLINK:
    case RTM_SETLINK:
      return there_and_back(message, decode_link(message.payload));
    case RTM_NEWADDR:
    case RTM_DELADDR:
    case RTM_GETADDR:
      return there_and_back(message, decode_address(message.payload));
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
    case RTM_GETROUTE:
      return there_and_back(message, decode_route(message.payload));
    case RTM_NEWRULE:
    case RTM_DELRULE:
    case RTM_GETRULE:
      return there_and_back(message, decode_rule(message.payload));
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
    case RTM_GETNEIGH:
      return there_and_back(message, decode_neighbour(message.payload));
    case NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW:
      return there_and_back(message, decode_conntrack(message.payload));
    default:
      return std::nullopt;
  }
}

}  // namespace podwire::netlink::test
