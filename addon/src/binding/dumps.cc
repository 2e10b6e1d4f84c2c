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
  // Destination of routes; the kernel does not filter by it.
  std::optional<IpAddress> destination = std::nullopt;
  uint8_t prefix_length = 0;
  uint32_t max_count = 0;
  std::chrono::milliseconds timeout{0};
};

std::optional<Filter> ReadFilter(Napi::Value value) {
  ObjectReader reader(value, "filter");
  const uint32_t family = reader.Number("family");
  Filter filter;
  filter.family = family == 4 ? AF_INET : family == 6 ? AF_INET6 : AF_UNSPEC;
  filter.index = reader.Number("index");
  filter.table = reader.Number("table");
  filter.proxy = reader.Flag("proxy");
  filter.protocol = static_cast<uint8_t>(reader.Number("protocol"));
  filter.destination = reader.OptionalAddress("destination");
  filter.prefix_length = static_cast<uint8_t>(reader.Number("prefixLengthBits"));
  filter.max_count = reader.Number("maxCount");
  filter.timeout = std::chrono::milliseconds(reader.Number("timeoutMs"));
  if (reader.Failed()) return std::nullopt;
  if (filter.destination) filter.family = filter.destination->family;
  return filter;
}

bool IsIp(uint8_t family) { return family == AF_INET || family == AF_INET6; }

// Lists of all families hold some that have no place here, such as a bridge's forwarding entries.
bool IsWanted(const Link&) { return true; }
bool IsWanted(const Address& address) { return IsIp(address.header.ifa_family); }
bool IsWanted(const Route& route) { return IsIp(route.header.rtm_family); }
bool IsWanted(const Rule& rule) { return IsIp(rule.header.family); }
bool IsWanted(const Neighbour& neighbour) { return IsIp(neighbour.header.ndm_family); }
// Whether a route is to exactly the destination of a filter, where that has one.
bool IsTo(const Route& route, const Filter& filter) {
  if (!filter.destination) return true;
  if (route.header.rtm_family != filter.destination->family || route.header.rtm_dst_len != filter.prefix_length)
    return false;
  return filter.prefix_length == 0 || (route.destination && route.destination->bytes == filter.destination->bytes);
}

bool IsFdb(const Neighbour& entry) { return entry.header.ndm_family == AF_BRIDGE; }

template <typename Object>
DumpRequest RequestFor(uint16_t type, Object object, const Filter& filter) {
  return {type, std::move(object), filter.max_count, filter.timeout};
}

template <typename Object>
using Decode = std::optional<Object> (*)(ByteView);
template <typename Object>
using Wanted = bool (*)(const Object&);

template <typename Object>
Result<std::vector<Object>> Collect(Namespace& from, const DumpRequest& request, Decode<Object> decode,
                                    Wanted<Object> is_wanted = IsWanted) {
  std::vector<Object> objects;
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { objects.clear(); };
  sink.take = [&](const Message& message) {
    auto object = decode(message.payload);
    malformed = malformed || !object;
    if (object && is_wanted(*object)) objects.push_back(std::move(*object));
  };
  const auto failure = from.Dump(request, sink);
  if (failure) return *failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return objects;
}

template <typename Object, typename Convert>
Napi::Value ConvertEach(Napi::Env env, const std::vector<Object>& objects, Convert convert) {
  auto array = Napi::Array::New(env, objects.size());
  for (uint32_t position = 0; position < objects.size(); ++position) {
    const Napi::HandleScope scope(env);
    array.Set(position, convert(env, objects[position]));
  }
  return array;
}

template <typename Object>
Napi::Value ToArray(Napi::Env env, std::vector<Object>& objects) {
  return ConvertEach(env, objects, [](Napi::Env env, const Object& object) { return ToJs(env, object); });
}

Napi::Value ToFdbArray(Napi::Env env, std::vector<Neighbour>& entries) { return ConvertEach(env, entries, FdbToJs); }

}  // namespace

Napi::Value DumpLinks(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Link link;
  link.extension_mask = RTEXT_FILTER_SKIP_STATS;
  const auto request = RequestFor(RTM_GETLINK, link, *filter);
  return queue.Promise<std::vector<Link>>(
      value.Env(), [from, request] { return Collect<Link>(*from, request, DecodeLink); }, ToArray<Link>);
}

Napi::Value DumpAddresses(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Address address;
  address.header.ifa_family = filter->family;
  address.header.ifa_index = filter->index;
  const auto request = RequestFor(RTM_GETADDR, address, *filter);
  return queue.Promise<std::vector<Address>>(
      value.Env(), [from, request] { return Collect<Address>(*from, request, DecodeObject<Address>); },
      ToArray<Address>);
}

Napi::Value DumpRoutes(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Route route;
  route.header.rtm_family = filter->family;
  route.header.rtm_protocol = filter->protocol;
  if (filter->table != 0) route.table = filter->table;
  if (filter->index != 0) route.output = filter->index;
  const auto request = RequestFor(RTM_GETROUTE, route, *filter);
  const auto work = [from, request, filter = *filter]() -> Result<std::vector<Route>> {
    auto routes = Collect<Route>(*from, request, DecodeObject<Route>);
    // A table comes into being with its first route.
    if (!routes && routes.Error().number == ENOENT && filter.table != 0) return std::vector<Route>();
    if (!routes) return routes;
    const auto is_other = [&](const Route& found) { return !IsTo(found, filter); };
    routes->erase(std::remove_if(routes->begin(), routes->end(), is_other), routes->end());
    return routes;
  };
  return queue.Promise<std::vector<Route>>(value.Env(), work, ToArray<Route>);
}

Napi::Value DumpRules(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Rule rule;
  rule.header.family = filter->family;
  const auto request = RequestFor(RTM_GETRULE, rule, *filter);
  return queue.Promise<std::vector<Rule>>(
      value.Env(), [from, request] { return Collect<Rule>(*from, request, DecodeObject<Rule>); }, ToArray<Rule>);
}

Napi::Value DumpFdb(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Neighbour entry;
  entry.header.ndm_family = AF_BRIDGE;
  if (filter->index != 0) entry.filter_index = filter->index;
  const auto request = RequestFor(RTM_GETNEIGH, entry, *filter);
  return queue.Promise<std::vector<Neighbour>>(
      value.Env(), [from, request] { return Collect<Neighbour>(*from, request, DecodeObject<Neighbour>, IsFdb); },
      ToFdbArray);
}

Napi::Value DumpNeighbours(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  Neighbour neighbour;
  neighbour.header.ndm_family = filter->family;
  neighbour.header.ndm_flags = filter->proxy ? NTF_PROXY : 0;
  if (filter->index != 0) neighbour.filter_index = filter->index;
  const auto request = RequestFor(RTM_GETNEIGH, neighbour, *filter);
  return queue.Promise<std::vector<Neighbour>>(
      value.Env(), [from, request] { return Collect<Neighbour>(*from, request, DecodeObject<Neighbour>); },
      ToArray<Neighbour>);
}

}  // namespace podwire::netlink
