#include "binding/steps.h"

#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>

#include "binding/namespace_handle.h"
#include "binding/object_reader.h"
#include "object/tunnel.h"

namespace podwire::netlink {

namespace {

std::optional<std::vector<uint8_t>> read_mac(ObjectReader& reader, const char* name) {
  const auto text = reader.optional_text(name);
  if (!text) return std::nullopt;
  std::array<unsigned, 6> parts{};
  int end = 0;
  const int count = std::sscanf(text->c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &parts[0], &parts[1], &parts[2], &parts[3],
                                &parts[4], &parts[5], &end);
  if (count != 6 || static_cast<size_t>(end) != text->size()) reader.fail(name, "a MAC address");
  return std::vector<uint8_t>(parts.begin(), parts.end());
}

std::optional<std::shared_ptr<Namespace>> read_namespace(ObjectReader& reader, const char* name) {
  const auto value = reader.value(name);
  if (value.IsNull()) return std::nullopt;
  auto found = NamespaceHandle::namespace_of(value);
  if (found) return found;
  reader.fail(name, "an open namespace");
  return std::nullopt;
}

/** A link: an index goes into the request's object at once, a name is looked up when the request's turn comes. */
void read_selector(ObjectReader reader, Request& request) {
  const uint32_t index = reader.number("index");
  request.lookup = reader.optional_text("name");
  if (!request.lookup) request.set_link_index(index);
}

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
  vxlan.local = reader.optional_address("local");
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
  tunnel.local = reader.optional_address("local");
  tunnel.remote = reader.optional_address("remote");
  tunnel.ttl = static_cast<uint8_t>(reader.number("ttl"));
  tunnel.tos = static_cast<uint8_t>(reader.number("tos"));
  tunnel.path_mtu_discovery = reader.flag("pathMtuDiscovery");
  LinkInfo info;
  info.kind = "ipip";
  info.data = encode_ip_tunnel(tunnel);
  return create_tunnel(reader, std::move(info));
}

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

/** RTM_NEW* or RTM_DEL*, with its flags. */
Request read_verb(ObjectReader& reader, uint16_t added, uint16_t deleted) {
  Request request;
  const std::string verb = reader.text("verb");
  request.type = verb == "delete" ? deleted : added;
  if (verb == "add") {
    request.flags = NLM_F_CREATE | NLM_F_EXCL;
  } else if (verb == "replace") {
    request.flags = NLM_F_CREATE | NLM_F_REPLACE;
  } else if (verb == "append") {
    request.flags = NLM_F_CREATE | NLM_F_APPEND;
  } else if (verb != "delete") {
    reader.fail("verb", "add, replace, append or delete");
  }
  return request;
}

Request read_address_step(ObjectReader& reader) {
  Request request = read_verb(reader, RTM_NEWADDR, RTM_DELADDR);
  Address address;
  address.local = reader.optional_address("address");
  address.address = address.local;
  address.family = address.local ? address.local->family : AF_UNSPEC;
  address.prefix_length = static_cast<uint8_t>(reader.number("prefixLengthBits"));
  address.scope = static_cast<uint8_t>(reader.number("scope"));
  address.header_flags = reader.flag("noDad") ? IFA_F_NODAD : 0;
  request.object = std::move(address);
  read_selector(reader.object("link"), request);
  return request;
}

Request read_route_step(ObjectReader& reader) {
  Request request = read_verb(reader, RTM_NEWROUTE, RTM_DELROUTE);
  Route route;
  const auto destination = reader.optional_address("destination");
  route.family = destination ? destination->family : AF_UNSPEC;
  route.destination_length = static_cast<uint8_t>(reader.number("prefixLengthBits"));
  if (route.destination_length > 0) route.destination = destination;
  route.gateway = reader.optional_address("gateway");
  route.preferred_source = reader.optional_address("source");
  route.scope = static_cast<uint8_t>(reader.number("scope"));
  route.protocol = static_cast<uint8_t>(reader.number("protocol"));
  route.type = static_cast<uint8_t>(reader.number("routeType"));
  route.flags = reader.flag("onlink") ? RTNH_F_ONLINK : 0;
  route.priority = reader.optional_number("metric");
  const uint32_t table = reader.number("table");
  if (table <= UINT8_MAX) {
    route.header_table = static_cast<uint8_t>(table);
  } else {
    route.table = table;
  }
  request.object = std::move(route);
  if (const auto output = reader.optional_object("output")) read_selector(*output, request);
  return request;
}

Request read_rule_step(ObjectReader& reader) {
  Request request = read_verb(reader, RTM_NEWRULE, RTM_DELRULE);
  Rule rule;
  const auto source = reader.optional_address("source");
  rule.family = source ? source->family : AF_UNSPEC;
  rule.source_length = static_cast<uint8_t>(reader.number("sourceLengthBits"));
  if (rule.source_length > 0) rule.source = source;
  rule.action = FR_ACT_TO_TBL;
  rule.priority = reader.optional_number("priority");
  if (const auto protocol = reader.optional_number("protocol")) rule.protocol = static_cast<uint8_t>(*protocol);
  const uint32_t table = reader.number("table");
  if (table <= UINT8_MAX) {
    rule.header_table = static_cast<uint8_t>(table);
  } else {
    rule.table = table;
  }
  request.object = std::move(rule);
  return request;
}

Request read_neighbour_step(ObjectReader& reader) {
  Request request = read_verb(reader, RTM_NEWNEIGH, RTM_DELNEIGH);
  Neighbour neighbour;
  neighbour.destination = reader.optional_address("address");
  neighbour.family = neighbour.destination ? neighbour.destination->family : AF_UNSPEC;
  neighbour.mac = read_mac(reader, "mac");
  neighbour.state = NUD_PERMANENT;
  neighbour.flags = reader.flag("proxy") ? NTF_PROXY : 0;
  request.object = std::move(neighbour);
  read_selector(reader.object("link"), request);
  return request;
}

/** Without `master`, so that the entry is the device's own, not that of the bridge above it. */
Request read_fdb_step(ObjectReader& reader) {
  Request request = read_verb(reader, RTM_NEWNEIGH, RTM_DELNEIGH);
  Neighbour entry;
  entry.family = AF_BRIDGE;
  entry.mac = read_mac(reader, "mac");
  entry.destination = reader.optional_address("destination");
  entry.state = NUD_PERMANENT | NUD_NOARP;
  entry.flags = NTF_SELF;
  request.object = std::move(entry);
  read_selector(reader.object("link"), request);
  return request;
}

std::variant<Request, SysctlWrite> read_action(ObjectReader& reader) {
  const std::string op = reader.text("op");
  if (op == "link.add") return read_link_add(reader);
  if (op == "link.set") return read_link_set(reader);
  if (op == "link.delete") return read_link_delete(reader);
  if (op == "link.get") return read_link_get(reader);
  if (op == "address") return read_address_step(reader);
  if (op == "route") return read_route_step(reader);
  if (op == "rule") return read_rule_step(reader);
  if (op == "neighbour") return read_neighbour_step(reader);
  if (op == "fdb") return read_fdb_step(reader);
  if (op == "sysctl.write") {
    return SysctlWrite{reader.text("path"), reader.text("value"), reader.flag("readPrevious")};
  }
  reader.fail("op", "a known operation");
  return Request{};
}

}  // namespace

std::vector<Step> read_steps(Napi::Value value, const std::shared_ptr<Namespace>& within) {
  std::vector<Step> steps;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), "steps: must be an array").ThrowAsJavaScriptException();
    return steps;
  }
  const auto array = value.As<Napi::Array>();
  const uint32_t length = array.Length();
  steps.reserve(length);
  for (uint32_t position = 0; position < length && !value.Env().IsExceptionPending(); ++position) {
    ObjectReader reader(array.Get(position), "steps[" + std::to_string(position) + "]");
    Step step;
    step.within = read_namespace(reader, "within").value_or(within);
    step.optional = reader.flag("optional");
    step.action = read_action(reader);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace podwire::netlink
