#include "binding/steps.h"

#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include "binding/fields.h"
#include "binding/link_steps.h"

namespace podwire::netlink {

namespace {

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
  address.local = read_address(reader, "address");
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
  const auto destination = read_address(reader, "destination");
  route.family = destination ? destination->family : AF_UNSPEC;
  route.destination_length = static_cast<uint8_t>(reader.number("prefixLengthBits"));
  if (route.destination_length > 0) route.destination = destination;
  route.gateway = read_address(reader, "gateway");
  route.preferred_source = read_address(reader, "source");
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
  const auto source = read_address(reader, "source");
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
  neighbour.destination = read_address(reader, "address");
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
  entry.destination = read_address(reader, "destination");
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
