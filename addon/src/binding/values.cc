#include "binding/values.h"

#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>

#include "binding/shape.h"
#include "object/tunnel.h"

namespace podwire::netlink {

namespace {

constexpr size_t kMacBytes = 6;

Napi::Value NumberOrNull(Napi::Env env, const std::optional<uint32_t>& value) {
  if (!value) return env.Null();
  return Napi::Number::New(env, *value);
}

Napi::Value SignedOrNull(Napi::Env env, const std::optional<uint32_t>& value) {
  if (!value) return env.Null();
  return Napi::Number::New(env, static_cast<int32_t>(*value));
}

Napi::Value AddressOrNull(Napi::Env env, const std::optional<IpAddress>& value) {
  if (!value) return env.Null();
  return Napi::String::New(env, value->Text());
}

Napi::Value MacOrNull(Napi::Env env, const std::optional<std::vector<uint8_t>>& mac) {
  if (!mac || mac->size() != kMacBytes) return env.Null();
  const auto& bytes = *mac;
  char text[3 * kMacBytes];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4],
                bytes[5]);
  return Napi::String::New(env, text);
}

Napi::Value Prefix(Napi::Env env, const IpAddress& address, uint8_t length) {
  return Napi::String::New(env, address.Text() + "/" + std::to_string(length));
}

Napi::Number Family(Napi::Env env, uint8_t family) { return Napi::Number::New(env, family == AF_INET ? 4 : 6); }

Napi::Value Scope(Napi::Env env, uint8_t scope) {
  switch (scope) {
    case RT_SCOPE_UNIVERSE:
      return Napi::String::New(env, "global");
    case RT_SCOPE_SITE:
      return Napi::String::New(env, "site");
    case RT_SCOPE_LINK:
      return Napi::String::New(env, "link");
    case RT_SCOPE_HOST:
      return Napi::String::New(env, "host");
    case RT_SCOPE_NOWHERE:
      return Napi::String::New(env, "nowhere");
    default:
      return Napi::Number::New(env, scope);
  }
}

Napi::Value RouteType(Napi::Env env, uint8_t type) {
  switch (type) {
    case RTN_UNICAST:
      return Napi::String::New(env, "unicast");
    case RTN_LOCAL:
      return Napi::String::New(env, "local");
    case RTN_BROADCAST:
      return Napi::String::New(env, "broadcast");
    case RTN_MULTICAST:
      return Napi::String::New(env, "multicast");
    case RTN_BLACKHOLE:
      return Napi::String::New(env, "blackhole");
    case RTN_UNREACHABLE:
      return Napi::String::New(env, "unreachable");
    case RTN_PROHIBIT:
      return Napi::String::New(env, "prohibit");
    default:
      return Napi::Number::New(env, type);
  }
}

Napi::Value RuleAction(Napi::Env env, uint8_t action) {
  switch (action) {
    case FR_ACT_TO_TBL:
      return Napi::String::New(env, "lookup");
    case FR_ACT_BLACKHOLE:
      return Napi::String::New(env, "blackhole");
    case FR_ACT_UNREACHABLE:
      return Napi::String::New(env, "unreachable");
    case FR_ACT_PROHIBIT:
      return Napi::String::New(env, "prohibit");
    default:
      return Napi::Number::New(env, action);
  }
}

Napi::Value AddressGenerationOrNull(Napi::Env env, const std::optional<uint8_t>& mode) {
  constexpr std::array<const char*, 4> kModes = {"eui64", "none", "stable-privacy", "random"};
  if (!mode) return env.Null();
  if (*mode < kModes.size()) return Napi::String::New(env, kModes[*mode]);
  return Napi::Number::New(env, *mode);
}

// The address that means none is none.
std::optional<IpAddress> Given(const std::optional<IpAddress>& address) {
  return address && address->bytes != decltype(address->bytes){} ? address : std::nullopt;
}

// The index that means none is none.
Napi::Value IndexOrNull(Napi::Env env, const std::optional<uint32_t>& index) {
  return NumberOrNull(env, index.value_or(0) == 0 ? std::nullopt : index);
}

Napi::Object ToJs(Napi::Env env, const Vxlan& vxlan) {
  auto object = Napi::Object::New(env);
  object.Set("vni", Napi::Number::New(env, vxlan.vni.value_or(0)));
  object.Set("port", Napi::Number::New(env, vxlan.port.value_or(0)));
  object.Set("local", AddressOrNull(env, Given(vxlan.local)));
  object.Set("group", AddressOrNull(env, Given(vxlan.group)));
  object.Set("parentIndex", IndexOrNull(env, vxlan.parent));
  object.Set("learning", Napi::Boolean::New(env, vxlan.learning.value_or(false)));
  object.Set("external", Napi::Boolean::New(env, vxlan.external));
  return object;
}

Napi::Object ToJs(Napi::Env env, const IpTunnel& tunnel) {
  auto object = Napi::Object::New(env);
  object.Set("local", AddressOrNull(env, Given(tunnel.local)));
  object.Set("remote", AddressOrNull(env, Given(tunnel.remote)));
  return object;
}

Napi::Object ToJs(Napi::Env env, const Tbf& tbf) {
  auto object = Napi::Object::New(env);
  object.Set("rateBytesPerSecond", Napi::Number::New(env, static_cast<double>(tbf.rate_bytes_per_second)));
  object.Set("limitBytes", Napi::Number::New(env, tbf.limit_bytes));
  object.Set("bucketTicks", Napi::Number::New(env, tbf.bucket_ticks));
  return object;
}

}  // namespace

Napi::Value TextOrNull(Napi::Env env, const std::optional<std::string>& value) {
  if (!value) return env.Null();
  return Napi::String::New(env, *value);
}

Napi::Object ToJs(Napi::Env env, const Link& link) {
  const std::string kind = link.info ? link.info->KindName() : std::string();
  return Assemble(env, Shape::kLink,
                  {
                      {"index", Napi::Number::New(env, link.header.ifi_index)},
                      {"name", Napi::String::New(env, link.name.value_or(""))},
                      {"kind", TextOrNull(env, kind.empty() ? std::nullopt : std::optional(kind))},
                      {"mac", MacOrNull(env, link.mac)},
                      {"mtuBytes", Napi::Number::New(env, link.mtu.value_or(0))},
                      {"alias", TextOrNull(env, link.alias ? std::optional(WithoutZero(*link.alias)) : std::nullopt)},
                      {"group", Napi::Number::New(env, link.group.value_or(0))},
                      {"rootQdisc", TextOrNull(env, link.root_qdisc)},
                      {"up", Napi::Boolean::New(env, (link.header.ifi_flags & IFF_UP) != 0)},
                      {"flags", Napi::Number::New(env, link.header.ifi_flags)},
                      {"linkedIndex", NumberOrNull(env, link.linked_index)},
                      {"linkedNamespaceId", SignedOrNull(env, link.linked_namespace)},
                      {"txQueueLength", Napi::Number::New(env, link.tx_queue_length.value_or(0))},
                      {"txQueueCount", Napi::Number::New(env, link.tx_queues.value_or(1))},
                      {"rxQueueCount", Napi::Number::New(env, link.rx_queues.value_or(1))},
                      {"addressGeneration", AddressGenerationOrNull(env, AddressGeneration(link))},
                      {"vxlan", kind == "vxlan" ? ToJs(env, DecodeVxlan(link.info->data)) : env.Null()},
                      {"ipip", kind == "ipip" ? ToJs(env, DecodeIpTunnel(link.info->data)) : env.Null()},
                  });
}

Napi::Object ToJs(Napi::Env env, const Address& address) {
  const IpAddress none{address.header.ifa_family, {}};
  const IpAddress prefix_address = address.address.value_or(none);
  const IpAddress own = address.local.value_or(prefix_address);
  const bool has_peer = own.bytes != prefix_address.bytes;
  return Assemble(env, Shape::kAddress,
                  {
                      {"family", Family(env, address.header.ifa_family)},
                      {"linkIndex", Napi::Number::New(env, address.header.ifa_index)},
                      {"address", Prefix(env, own, address.header.ifa_prefixlen)},
                      {"peer", AddressOrNull(env, has_peer ? std::optional(prefix_address) : std::nullopt)},
                      {"scope", Scope(env, address.header.ifa_scope)},
                      {"flags", Napi::Number::New(env, address.flags.value_or(address.header.ifa_flags))},
                      {"label", TextOrNull(env, address.label)},
                  });
}

Napi::Object ToJs(Napi::Env env, const Route& route) {
  const IpAddress any{route.header.rtm_family, {}};
  return Assemble(env, Shape::kRoute,
                  {
                      {"family", Family(env, route.header.rtm_family)},
                      {"destination", Prefix(env, route.destination.value_or(any), route.header.rtm_dst_len)},
                      {"outputIndex", NumberOrNull(env, route.output)},
                      {"gateway", AddressOrNull(env, route.gateway)},
                      {"source", AddressOrNull(env, route.preferred_source)},
                      {"scope", Scope(env, route.header.rtm_scope)},
                      {"protocol", Napi::Number::New(env, route.header.rtm_protocol)},
                      {"table", Napi::Number::New(env, route.table.value_or(route.header.rtm_table))},
                      {"metric", Napi::Number::New(env, route.priority.value_or(0))},
                      {"routeType", RouteType(env, route.header.rtm_type)},
                      {"onlink", Napi::Boolean::New(env, (route.header.rtm_flags & RTNH_F_ONLINK) != 0)},
                      {"flags", Napi::Number::New(env, route.header.rtm_flags)},
                  });
}

Napi::Object ToJs(Napi::Env env, const Rule& rule) {
  const IpAddress any{rule.header.family, {}};
  return Assemble(env, Shape::kRule,
                  {
                      {"family", Family(env, rule.header.family)},
                      {"source", Prefix(env, rule.source.value_or(any), rule.header.src_len)},
                      {"destination", Prefix(env, rule.destination.value_or(any), rule.header.dst_len)},
                      {"action", RuleAction(env, rule.header.action)},
                      {"table", Napi::Number::New(env, rule.table.value_or(rule.header.table))},
                      {"priority", Napi::Number::New(env, rule.priority.value_or(0))},
                      {"protocol", Napi::Number::New(env, rule.protocol.value_or(0))},
                      {"flags", Napi::Number::New(env, rule.header.flags)},
                  });
}

Napi::Object ToJs(Napi::Env env, const Neighbour& neighbour) {
  const IpAddress none{neighbour.header.ndm_family, {}};
  return Assemble(env, Shape::kNeighbour,
                  {
                      {"family", Family(env, neighbour.header.ndm_family)},
                      {"linkIndex", Napi::Number::New(env, neighbour.header.ndm_ifindex)},
                      {"address", Napi::String::New(env, neighbour.destination.value_or(none).Text())},
                      {"mac", MacOrNull(env, neighbour.mac)},
                      {"proxy", Napi::Boolean::New(env, (neighbour.header.ndm_flags & NTF_PROXY) != 0)},
                      {"permanent", Napi::Boolean::New(env, (neighbour.header.ndm_state & NUD_PERMANENT) != 0)},
                      {"state", Napi::Number::New(env, neighbour.header.ndm_state)},
                  });
}

Napi::Object FdbToJs(Napi::Env env, const Neighbour& entry) {
  return Assemble(env, Shape::kFdb,
                  {
                      {"linkIndex", Napi::Number::New(env, entry.header.ndm_ifindex)},
                      {"mac", MacOrNull(env, entry.mac)},
                      {"destination", AddressOrNull(env, entry.destination)},
                      {"permanent", Napi::Boolean::New(env, (entry.header.ndm_state & NUD_PERMANENT) != 0)},
                      {"self", Napi::Boolean::New(env, (entry.header.ndm_flags & NTF_SELF) != 0)},
                      {"state", Napi::Number::New(env, entry.header.ndm_state)},
                  });
}

Napi::Object ToJs(Napi::Env env, const Qdisc& qdisc) {
  auto object = Napi::Object::New(env);
  object.Set("linkIndex", Napi::Number::New(env, qdisc.header.tcm_ifindex));
  object.Set("handle", Napi::Number::New(env, TC_H_MAJ(qdisc.header.tcm_handle) >> 16));
  object.Set("kind", Napi::String::New(env, qdisc.kind.value_or("")));
  const auto tbf = qdisc.tbf_options ? DecodeTbf(*qdisc.tbf_options) : std::nullopt;
  object.Set("tbf", tbf ? Napi::Value(ToJs(env, *tbf)) : env.Null());
  return object;
}

Napi::Object ToJs(Napi::Env env, const KernelError& error) {
  auto object = Napi::Object::New(env);
  object.Set("errno", Napi::Number::New(env, error.number));
  object.Set("text", TextOrNull(env, error.text.empty() ? std::nullopt : std::optional(error.text)));
  return object;
}

}  // namespace podwire::netlink
