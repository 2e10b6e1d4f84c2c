#include "binding/dumps.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

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
bool IsWanted(const Link&, const Filter&) { return true; }
bool IsWanted(const Address& address, const Filter&) { return IsIp(address.header.ifa_family); }
bool IsWanted(const Rule& rule, const Filter&) { return IsIp(rule.header.family); }
bool IsWanted(const Neighbour& neighbour, const Filter&) { return IsIp(neighbour.header.ndm_family); }
bool IsFdb(const Neighbour& entry, const Filter&) { return entry.header.ndm_family == AF_BRIDGE; }
// To exactly the destination of the filter, where that has one.
bool IsWanted(const Route& route, const Filter& filter) {
  const auto& destination = filter.destination;
  if (!destination) return IsIp(route.header.rtm_family);
  if (route.header.rtm_family != destination->family || route.header.rtm_dst_len != filter.prefix_length) return false;
  return filter.prefix_length == 0 || (route.destination && route.destination->bytes == destination->bytes);
}

template <typename Object>
struct Kind {
  // RTM_GET*.
  uint16_t type;
  // Puts the filter into the object of the request.
  void (*prepare)(Object& object, const Filter& filter);
  std::optional<Object> (*decode)(ByteView) = DecodeObject<Object>;
  bool (*is_wanted)(const Object&, const Filter&) = IsWanted;
  Napi::Object (*convert)(Napi::Env, const Object&) = ToJs;
};

template <typename Object>
Result<std::vector<Object>> Collect(Namespace& from, const Filter& filter, const Kind<Object>& kind) {
  Object requested;
  kind.prepare(requested, filter);
  std::vector<Object> objects;
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { objects.clear(); };
  sink.take = [&](const Message& message) {
    auto object = kind.decode(message.payload);
    malformed = malformed || !object;
    if (object && kind.is_wanted(*object, filter)) objects.push_back(std::move(*object));
  };
  const auto failure = from.Dump({kind.type, std::move(requested), filter.max_count, filter.timeout}, sink);
  // A table of routes comes into being with its first route.
  if (failure && failure->number == ENOENT && filter.table != 0) return std::vector<Object>();
  if (failure) return *failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return objects;
}

template <typename Object>
Napi::Value PromiseOf(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value, Kind<Object> kind) {
  const auto filter = ReadFilter(value);
  if (!filter) return {};
  const auto work = [from, filter = *filter, kind] { return Collect(*from, filter, kind); };
  const auto convert = [kind](Napi::Env env, std::vector<Object>& objects) -> Napi::Value {
    auto array = Napi::Array::New(env, objects.size());
    for (uint32_t position = 0; position < objects.size(); ++position) {
      const Napi::HandleScope scope(env);
      array.Set(position, kind.convert(env, objects[position]));
    }
    return array;
  };
  return queue.Promise<std::vector<Object>>(value.Env(), work, convert);
}

}  // namespace

Napi::Value DumpLinks(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Link& link, const Filter&) { link.extension_mask = RTEXT_FILTER_SKIP_STATS; };
  return PromiseOf<Link>(queue, from, value, {RTM_GETLINK, prepare, DecodeLink});
}

Napi::Value DumpAddresses(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Address& address, const Filter& filter) {
    address.header.ifa_family = filter.family;
    address.header.ifa_index = filter.index;
  };
  return PromiseOf<Address>(queue, from, value, {RTM_GETADDR, prepare});
}

Napi::Value DumpRoutes(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Route& route, const Filter& filter) {
    route.header.rtm_family = filter.family;
    route.header.rtm_protocol = filter.protocol;
    if (filter.table != 0) route.table = filter.table;
    if (filter.index != 0) route.output = filter.index;
  };
  return PromiseOf<Route>(queue, from, value, {RTM_GETROUTE, prepare});
}

Napi::Value DumpRules(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Rule& rule, const Filter& filter) { rule.header.family = filter.family; };
  return PromiseOf<Rule>(queue, from, value, {RTM_GETRULE, prepare});
}

Napi::Value DumpFdb(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Neighbour& entry, const Filter& filter) {
    entry.header.ndm_family = AF_BRIDGE;
    if (filter.index != 0) entry.filter_index = filter.index;
  };
  return PromiseOf<Neighbour>(queue, from, value, {RTM_GETNEIGH, prepare, DecodeObject<Neighbour>, IsFdb, FdbToJs});
}

Napi::Value DumpNeighbours(JobQueue& queue, const std::shared_ptr<Namespace>& from, Napi::Value value) {
  const auto prepare = [](Neighbour& neighbour, const Filter& filter) {
    neighbour.header.ndm_family = filter.family;
    neighbour.header.ndm_flags = filter.proxy ? NTF_PROXY : 0;
    if (filter.index != 0) neighbour.filter_index = filter.index;
  };
  return PromiseOf<Neighbour>(queue, from, value, {RTM_GETNEIGH, prepare});
}

}  // namespace podwire::netlink
