#include "binding/steps.h"

#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>

#include "binding/namespace_handle.h"
#include "binding/object_reader.h"
#include "object/tunnel.h"

namespace podwire::netlink {

namespace {

std::optional<std::vector<uint8_t>> ReadMac(ObjectReader& reader, const char* name) {
  const auto text = reader.OptionalText(name);
  if (!text) return std::nullopt;
  std::array<unsigned, 6> parts{};
  int end = 0;
  const int count = std::sscanf(text->c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &parts[0], &parts[1], &parts[2], &parts[3],
                                &parts[4], &parts[5], &end);
  if (count != 6 || static_cast<size_t>(end) != text->size()) reader.Fail(name, "a MAC address");
  return std::vector<uint8_t>(parts.begin(), parts.end());
}

std::optional<std::shared_ptr<Namespace>> ReadNamespace(ObjectReader& reader, const char* name) {
  const auto value = reader.Value(name);
  if (value.IsNull()) return std::nullopt;
  auto found = NamespaceHandle::NamespaceOf(value);
  if (found) return found;
  reader.Fail(name, "an open namespace");
  return std::nullopt;
}

// A link: an index goes into the request's object at once, a name is looked up when the request's turn comes.
void ReadSelector(ObjectReader reader, Request& request) {
  const uint32_t index = reader.Number("index");
  request.lookup = reader.OptionalText("name");
  if (!request.lookup) request.SetLinkIndex(index);
}

// Attributes of every new link.
Link ReadNewLink(ObjectReader& reader) {
  Link link;
  link.name = reader.Text("name");
  link.mac = ReadMac(reader, "mac");
  link.mtu = reader.OptionalNumber("mtuBytes");
  link.tx_queue_length = reader.OptionalNumber("txQueueLength");
  link.tx_queues = reader.OptionalNumber("txQueueCount");
  link.rx_queues = reader.OptionalNumber("rxQueueCount");
  return link;
}

Request Create(ObjectReader& reader, LinkInfo info) {
  Link link = ReadNewLink(reader);
  link.info = std::move(info);
  Request request;
  request.type = RTM_NEWLINK;
  request.flags = NLM_F_CREATE | NLM_F_EXCL;
  request.object = std::move(link);
  return request;
}

Request ReadVeth(ObjectReader& reader) {
  auto other_end = reader.Object("peer");
  Link peer = ReadNewLink(other_end);
  const auto peer_namespace = ReadNamespace(other_end, "namespace");
  if (!peer_namespace) other_end.Fail("namespace", "an open namespace");
  auto peer_netns = peer_namespace ? (*peer_namespace)->GetNetns() : nullptr;
  if (peer_netns) peer.namespace_fd = static_cast<uint32_t>(peer_netns->Fd());
  LinkInfo info;
  info.kind = "veth";
  info.peer.push_back(std::move(peer));
  Request request = Create(reader, std::move(info));
  // The echo has both ends' indexes, which spares their look-up. Of a VXLAN device the kernel sends none.
  request.flags |= NLM_F_ECHO;
  request.peer_namespace = std::move(peer_netns);
  return request;
}

Request ReadVxlan(ObjectReader& reader) {
  Vxlan vxlan;
  vxlan.vni = reader.Number("vni");
  vxlan.port = static_cast<uint16_t>(reader.Number("port"));
  vxlan.local = reader.OptionalAddress("local");
  // The kernel's default is to learn.
  vxlan.learning = false;
  LinkInfo info;
  info.kind = "vxlan";
  info.data = EncodeVxlan(vxlan);
  Request request = Create(reader, std::move(info));
  if (const auto parent = reader.OptionalObject("parent")) ReadSelector(*parent, request);
  return request;
}

Request ReadIpip(ObjectReader& reader) {
  IpTunnel tunnel;
  tunnel.local = reader.OptionalAddress("local");
  tunnel.path_mtu_discovery = true;
  LinkInfo info;
  info.kind = "ipip";
  info.data = EncodeIpTunnel(tunnel);
  return Create(reader, std::move(info));
}

Request ReadLinkAdd(ObjectReader& reader) {
  const std::string kind = reader.Text("kind");
  if (kind == "veth") return ReadVeth(reader);
  if (kind == "vxlan") return ReadVxlan(reader);
  if (kind == "ipip") return ReadIpip(reader);
  reader.Fail("kind", "veth, vxlan or ipip");
  return {};
}

Request ReadLinkSet(ObjectReader& reader) {
  Link link;
  if (const auto up = reader.OptionalFlag("up")) {
    link.header.ifi_flags = *up ? IFF_UP : 0;
    link.header.ifi_change = IFF_UP;
  }
  link.mac = ReadMac(reader, "mac");
  link.mtu = reader.OptionalNumber("mtuBytes");
  link.alias = reader.OptionalText("alias");
  link.group = reader.OptionalNumber("group");
  link.name = reader.OptionalText("name");
  link.tx_queue_length = reader.OptionalNumber("txQueueLength");
  const auto generation = reader.OptionalNumber("addressGeneration");
  if (generation) SetAddressGeneration(link, static_cast<uint8_t>(*generation));

  Request request;
  request.type = RTM_SETLINK;
  request.object = std::move(link);
  ReadSelector(reader.Object("link"), request);
  // Without a new name in it, the message itself can say which link is meant.
  auto& object = std::get<Link>(request.object);
  if (!object.name) object.name = std::exchange(request.lookup, std::nullopt);
  return request;
}

Request ReadLinkGet(ObjectReader& reader) {
  auto selector = reader.Object("link");
  return GetLink(selector.Number("index"), selector.OptionalText("name").value_or(""));
}

Request ReadLinkDelete(ObjectReader& reader) {
  auto selector = reader.Object("link");
  return DeleteLink(selector.Number("index"), selector.OptionalText("name").value_or(""));
}

// RTM_NEW* or RTM_DEL*, with its flags.
Request ReadVerb(ObjectReader& reader, uint16_t added, uint16_t deleted) {
  Request request;
  const std::string verb = reader.Text("verb");
  request.type = verb == "delete" ? deleted : added;
  if (verb == "add") {
    request.flags = NLM_F_CREATE | NLM_F_EXCL;
  } else if (verb == "replace") {
    request.flags = NLM_F_CREATE | NLM_F_REPLACE;
  } else if (verb == "append") {
    request.flags = NLM_F_CREATE | NLM_F_APPEND;
  } else if (verb != "delete") {
    reader.Fail("verb", "add, replace, append or delete");
  }
  return request;
}

Request ReadAddressStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWADDR, RTM_DELADDR);
  Address address;
  address.local = reader.OptionalAddress("address");
  address.address = address.local;
  address.header.ifa_family = address.local ? address.local->family : AF_UNSPEC;
  address.header.ifa_prefixlen = static_cast<uint8_t>(reader.Number("prefixLengthBits"));
  address.header.ifa_scope = static_cast<uint8_t>(reader.Number("scope"));
  address.header.ifa_flags = reader.Flag("noDad") ? IFA_F_NODAD : 0;
  request.object = std::move(address);
  ReadSelector(reader.Object("link"), request);
  return request;
}

Request ReadRouteStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWROUTE, RTM_DELROUTE);
  Route route;
  const auto destination = reader.OptionalAddress("destination");
  route.header.rtm_family = destination ? destination->family : AF_UNSPEC;
  route.header.rtm_dst_len = static_cast<uint8_t>(reader.Number("prefixLengthBits"));
  if (route.header.rtm_dst_len > 0) route.destination = destination;
  route.gateway = reader.OptionalAddress("gateway");
  route.preferred_source = reader.OptionalAddress("source");
  route.header.rtm_scope = static_cast<uint8_t>(reader.Number("scope"));
  route.header.rtm_protocol = static_cast<uint8_t>(reader.Number("protocol"));
  route.header.rtm_type = static_cast<uint8_t>(reader.Number("routeType"));
  route.header.rtm_flags = reader.Flag("onlink") ? RTNH_F_ONLINK : 0;
  route.priority = reader.OptionalNumber("metric");
  const uint32_t table = reader.Number("table");
  if (table <= UINT8_MAX) {
    route.header.rtm_table = static_cast<uint8_t>(table);
  } else {
    route.table = table;
  }
  request.object = std::move(route);
  if (const auto output = reader.OptionalObject("output")) ReadSelector(*output, request);
  return request;
}

Request ReadRuleStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWRULE, RTM_DELRULE);
  Rule rule;
  const auto source = reader.OptionalAddress("source");
  rule.header.family = source ? source->family : AF_UNSPEC;
  rule.header.src_len = static_cast<uint8_t>(reader.Number("sourceLengthBits"));
  if (rule.header.src_len > 0) rule.source = source;
  rule.header.action = FR_ACT_TO_TBL;
  rule.priority = reader.OptionalNumber("priority");
  if (const auto protocol = reader.OptionalNumber("protocol")) rule.protocol = static_cast<uint8_t>(*protocol);
  const uint32_t table = reader.Number("table");
  if (table <= UINT8_MAX) {
    rule.header.table = static_cast<uint8_t>(table);
  } else {
    rule.table = table;
  }
  request.object = std::move(rule);
  return request;
}

Request ReadNeighbourStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWNEIGH, RTM_DELNEIGH);
  Neighbour neighbour;
  neighbour.destination = reader.OptionalAddress("address");
  neighbour.header.ndm_family = neighbour.destination ? neighbour.destination->family : AF_UNSPEC;
  neighbour.mac = ReadMac(reader, "mac");
  neighbour.header.ndm_state = NUD_PERMANENT;
  neighbour.header.ndm_flags = reader.Flag("proxy") ? NTF_PROXY : 0;
  request.object = std::move(neighbour);
  ReadSelector(reader.Object("link"), request);
  return request;
}

// Without `master`, so that the entry is the device's own, not that of the bridge above it.
Request ReadFdbStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWNEIGH, RTM_DELNEIGH);
  Neighbour entry;
  entry.header.ndm_family = AF_BRIDGE;
  entry.mac = ReadMac(reader, "mac");
  entry.destination = reader.OptionalAddress("destination");
  entry.header.ndm_state = NUD_PERMANENT | NUD_NOARP;
  entry.header.ndm_flags = NTF_SELF;
  request.object = std::move(entry);
  ReadSelector(reader.Object("link"), request);
  return request;
}

// The root qdisc of a link.
Request RootQdisc(ObjectReader& reader, Request request, Qdisc qdisc) {
  qdisc.header.tcm_parent = TC_H_ROOT;
  request.object = std::move(qdisc);
  ReadSelector(reader.Object("link"), request);
  return request;
}

Request ReadQdiscStep(ObjectReader& reader) {
  Request request = ReadVerb(reader, RTM_NEWQDISC, RTM_DELQDISC);
  Qdisc qdisc;
  qdisc.header.tcm_handle = reader.Number("handle");
  if (auto options = reader.OptionalObject("tbf")) {
    Tbf tbf;
    tbf.rate_bytes_per_second = options->LongNumber("rateBytesPerSecond");
    tbf.burst_bytes = options->Number("burstBytes");
    tbf.limit_bytes = options->Number("limitBytes");
    qdisc.kind = "tbf";
    qdisc.tbf_options = EncodeTbf(tbf);
  }
  return RootQdisc(reader, std::move(request), std::move(qdisc));
}

Request ReadQdiscGet(ObjectReader& reader) {
  Request request;
  request.type = RTM_GETQDISC;
  // Without it the kernel sends the answer to subscribers only.
  request.flags = NLM_F_ECHO;
  return RootQdisc(reader, std::move(request), Qdisc());
}

std::variant<Request, SysctlWrite> ReadAction(ObjectReader& reader) {
  const std::string op = reader.Text("op");
  if (op == "link.add") return ReadLinkAdd(reader);
  if (op == "link.set") return ReadLinkSet(reader);
  if (op == "link.delete") return ReadLinkDelete(reader);
  if (op == "link.get") return ReadLinkGet(reader);
  if (op == "address") return ReadAddressStep(reader);
  if (op == "route") return ReadRouteStep(reader);
  if (op == "rule") return ReadRuleStep(reader);
  if (op == "neighbour") return ReadNeighbourStep(reader);
  if (op == "fdb") return ReadFdbStep(reader);
  if (op == "qdisc") return ReadQdiscStep(reader);
  if (op == "qdisc.get") return ReadQdiscGet(reader);
  if (op == "sysctl.write") {
    return SysctlWrite{reader.Text("path"), reader.Text("value"), reader.Flag("readPrevious")};
  }
  reader.Fail("op", "a known operation");
  return Request{};
}

}  // namespace

std::vector<Step> ReadSteps(Napi::Value value, const std::shared_ptr<Namespace>& within) {
  std::vector<Step> steps;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), "steps: must be an array").ThrowAsJavaScriptException();
    return steps;
  }
  const auto array = value.As<Napi::Array>();
  const uint32_t length = array.Length();
  steps.reserve(length);
  for (uint32_t position = 0; position < length && !value.Env().IsExceptionPending(); ++position) {
    ObjectReader reader(ElementAt(array, position), "steps[" + std::to_string(position) + "]");
    Step step;
    step.within = ReadNamespace(reader, "within").value_or(within);
    step.optional = reader.Flag("optional");
    step.action = ReadAction(reader);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace podwire::netlink
