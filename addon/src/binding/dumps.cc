#include "binding/dumps.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "binding/object_reader.h"

namespace podwire::netlink {

namespace {

struct Filter {
  uint8_t family = AF_UNSPEC;
  uint32_t index = 0;
  uint32_t table = 0;
  bool proxy = false;
  uint8_t protocol = 0;
  /** Of routes; the kernel does not filter by it. */
  std::optional<IpAddress> destination = std::nullopt;
  uint8_t prefix_length = 0;
  uint32_t max_count = 0;
  std::chrono::milliseconds timeout{0};
};

std::optional<Filter> read_filter(Napi::Value value) {
  ObjectReader reader(value, "filter");
  const uint32_t family = reader.number("family");
  Filter filter;
  filter.family = family == 4 ? AF_INET : family == 6 ? AF_INET6 : AF_UNSPEC;
  filter.index = reader.number("index");
  filter.table = reader.number("table");
  filter.proxy = reader.flag("proxy");
  filter.protocol = static_cast<uint8_t>(reader.number("protocol"));
  filter.destination = reader.optional_address("destination");
  filter.prefix_length = static_cast<uint8_t>(reader.number("prefixLengthBits"));
  filter.max_count = reader.number("maxCount");
  filter.timeout = std::chrono::milliseconds(reader.number("timeoutMs"));
  if (reader.failed()) return std::nullopt;
  if (filter.destination) filter.family = filter.destination->family;
  return filter;
}

bool is_ip(uint8_t family) { return family == AF_INET || family == AF_INET6; }

/** Lists of all families hold some that have no place here, such as a bridge's forwarding entries. */
bool wanted(const Link&) { return true; }
bool wanted(const Address& address) { return is_ip(address.family); }
bool wanted(const Route& route) { return is_ip(route.family); }
bool wanted(const Rule& rule) { return is_ip(rule.family); }
bool wanted(const Neighbour& neighbour) { return is_ip(neighbour.family); }
/** Whether a route is to exactly the destination of a filter, where that has one. */
bool is_to(const Route& route, const Filter& filter) {
  if (!filter.destination) return true;
  if (route.family != filter.destination->family || route.destination_length != filter.prefix_length) return false;
  return filter.prefix_length == 0 || (route.destination && route.destination->bytes == filter.destination->bytes);
}

bool is_fdb(const Neighbour& entry) { return entry.family == AF_BRIDGE; }

template <typename Object>
DumpRequest request_for(uint16_t type, Object object, const Filter& filter) {
  return {type, std::move(object), filter.max_count, filter.timeout};
}

template <typename Object>
using Decode = std::optional<Object> (*)(ByteView);
template <typename Object>
using Wanted = bool (*)(const Object&);

template <typename Object>
Result<std::vector<Object>> collect(Namespace& from, const DumpRequest& request, Decode<Object> decode,
                                    Wanted<Object> is_wanted = wanted) {
  std::vector<Object> objects;
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { objects.clear(); };
  sink.take = [&](const Message& message) {
    auto object = decode(message.payload);
    malformed = malformed || !object;
    if (object && is_wanted(*object)) objects.push_back(std::move(*object));
  };
  const auto failure = from.dump(request, sink);
  if (failure) return *failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return objects;
}

template <typename Object, typename Convert>
Napi::Value convert_each(Napi::Env env, const std::vector<Object>& objects, Convert convert) {
  auto array = Napi::Array::New(env, objects.size());
  for (uint32_t position = 0; position < objects.size(); ++position) {
    const Napi::HandleScope scope(env);
    array.Set(position, convert(env, objects[position]));
  }
  return array;
}

template <typename Object>
Napi::Value to_array(Napi::Env env, std::vector<Object>& objects) {
  return convert_each(env, objects, [](Napi::Env env, const Object& object) { return to_js(env, object); });
}

Napi::Value to_fdb_array(Napi::Env env, std::vector<Neighbour>& entries) {
  return convert_each(env, entries, fdb_to_js);
}

}  // namespace

Napi::Value dump_links(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Link link;
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  const auto request = request_for(RTM_GETLINK, link, *filter);
  return queue.promise<std::vector<Link>>(
      value.Env(), [from, request] { return collect<Link>(*from, request, decode_link); }, to_array<Link>);
}

Napi::Value dump_addresses(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Address address;
  address.family = filter->family;
  address.link_index = filter->index;
  const auto request = request_for(RTM_GETADDR, address, *filter);
  return queue.promise<std::vector<Address>>(
      value.Env(), [from, request] { return collect<Address>(*from, request, decode_address); }, to_array<Address>);
}

Napi::Value dump_routes(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Route route;
  route.family = filter->family;
  route.protocol = filter->protocol;
  if (filter->table != 0) route.table = filter->table;
  if (filter->index != 0) route.output = filter->index;
  const auto request = request_for(RTM_GETROUTE, route, *filter);
  const auto work = [from, request, filter = *filter]() -> Result<std::vector<Route>> {
    auto routes = collect<Route>(*from, request, decode_route);
    // A table comes into being with its first route.
    if (!routes && routes.error().number == ENOENT && filter.table != 0) return std::vector<Route>();
    if (!routes) return routes;
    const auto is_other = [&](const Route& found) { return !is_to(found, filter); };
    routes->erase(std::remove_if(routes->begin(), routes->end(), is_other), routes->end());
    return routes;
  };
  return queue.promise<std::vector<Route>>(value.Env(), work, to_array<Route>);
}

Napi::Value dump_rules(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Rule rule;
  rule.family = filter->family;
  const auto request = request_for(RTM_GETRULE, rule, *filter);
  return queue.promise<std::vector<Rule>>(
      value.Env(), [from, request] { return collect<Rule>(*from, request, decode_rule); }, to_array<Rule>);
}

Napi::Value dump_fdb(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Neighbour entry;
  entry.family = AF_BRIDGE;
  if (filter->index != 0) entry.filter_index = filter->index;
  const auto request = request_for(RTM_GETNEIGH, entry, *filter);
  return queue.promise<std::vector<Neighbour>>(
      value.Env(), [from, request] { return collect<Neighbour>(*from, request, decode_neighbour, is_fdb); },
      to_fdb_array);
}

Napi::Value dump_neighbours(JobQueue& queue, std::shared_ptr<Namespace> from, Napi::Value value) {
  const auto filter = read_filter(value);
  if (!filter) return {};
  Neighbour neighbour;
  neighbour.family = filter->family;
  neighbour.flags = filter->proxy ? NTF_PROXY : 0;
  if (filter->index != 0) neighbour.filter_index = filter->index;
  const auto request = request_for(RTM_GETNEIGH, neighbour, *filter);
  return queue.promise<std::vector<Neighbour>>(
      value.Env(), [from, request] { return collect<Neighbour>(*from, request, decode_neighbour); },
      to_array<Neighbour>);
}

}  // namespace podwire::netlink
