#include "binding/monitor.h"

#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "binding/job.h"
#include "binding/loop_poll.h"
#include "binding/object_reader.h"
#include "binding/shape.h"
#include "binding/values.h"
#include "netfilter/packet_log.h"
#include "netfilter/table_watch.h"
#include "socket/subscription.h"
#include "socket/unique_fd.h"

namespace podwire::netlink {

namespace {

// Calls back on the environment's thread some time after it was started. Does not keep the process alive.
class LoopTimer {
 public:
  // `elapsed` runs as the callback of a LoopPoll does, and may destroy this object.
  LoopTimer(Napi::Env env, std::function<void()> elapsed);

  // Calls back once. False when the kernel has no timer to spare; then nothing is called.
  bool Start(std::chrono::milliseconds delay);

 private:
  UniqueFd fd_;
  std::optional<LoopPoll> poll_;
};

LoopTimer::LoopTimer(Napi::Env env, std::function<void()> elapsed)
    : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!fd_) return;
  poll_.emplace(env, fd_.Get(), [this, elapsed = std::move(elapsed)] {
    uint64_t expirations = 0;
    if (::read(fd_.Get(), &expirations, sizeof expirations) == sizeof expirations) elapsed();
  });
}

bool LoopTimer::Start(std::chrono::milliseconds delay) {
  itimerspec when{};
  when.it_value.tv_sec = delay.count() / 1000;
  when.it_value.tv_nsec = delay.count() % 1000 * 1'000'000;
  return fd_ && ::timerfd_settime(fd_.Get(), 0, &when, nullptr) == 0;
}

bool IsIp(uint8_t family) { return family == AF_INET || family == AF_INET6; }
// Bridges announce their ports in a family of their own.
bool IsWanted(const Link& link) { return link.header.ifi_family == AF_UNSPEC; }
bool IsWanted(const Address& address) { return IsIp(address.header.ifa_family); }
bool IsWanted(const Route& route) { return IsIp(route.header.rtm_family); }
bool IsWanted(const Neighbour& neighbour) { return IsIp(neighbour.header.ndm_family); }

// Names of the notifications among NFT_MSG_*, in their order.
constexpr std::array<const char*, 25> kTableChanges = {
    "table.add",     nullptr,      "table.delete",  "chain.add",   nullptr,
    "chain.delete",  "rule.add",   nullptr,         "rule.delete", "set.add",
    nullptr,         "set.delete", "elements.add",  nullptr,       "elements.delete",
    nullptr,         nullptr,      nullptr,         "object.add",  nullptr,
    "object.delete", nullptr,      "flowtable.add", nullptr,       "flowtable.delete"};

// The events of one turn of the loop, as JavaScript values.
class Events {
 public:
  explicit Events(Napi::Env env) : env_(env), array_(Napi::Array::New(env)) {}

  void Add(const TableTransaction& transaction) {
    auto event = Named("transaction");
    const auto& [id, thread, name] = transaction.generation;
    event.Set("generation", Napi::Number::New(env_, id));
    event.Set("threadId", thread ? Napi::Value(Napi::Number::New(env_, *thread)) : env_.Null());
    event.Set("processName", TextOrNull(env_, name));
    auto changes = Napi::Array::New(env_, transaction.kinds.size());
    for (uint32_t table = 0; table < transaction.kinds.size(); ++table) {
      auto names = Napi::Array::New(env_);
      for (const uint16_t kind : transaction.kinds[table]) {
        const char* change = kind < kTableChanges.size() ? kTableChanges[kind] : nullptr;
        names.Set(names.Length(), Napi::String::New(env_, change ? change : std::to_string(kind)));
      }
      changes.Set(table, names);
    }
    event.Set("changes", changes);
    Append(event);
  }

  void Add(const Message& message) {
    switch (message.type) {
      case RTM_NEWLINK:
      case RTM_DELLINK:
        return Add("link", message.type == RTM_DELLINK, DecodeLink(message.payload));
      case RTM_NEWADDR:
      case RTM_DELADDR:
        return Add("address", message.type == RTM_DELADDR, DecodeObject<Address>(message.payload));
      case RTM_NEWROUTE:
      case RTM_DELROUTE:
        return Add("route", message.type == RTM_DELROUTE, DecodeObject<Route>(message.payload));
      case RTM_NEWNEIGH:
      case RTM_DELNEIGH:
        return AddNeighbour(message.type == RTM_DELNEIGH, DecodeObject<Neighbour>(message.payload));
      default:
        return;
    }
  }

  void Add(const LoggedPacket& packet) {
    auto event = Named("packet");
    const auto& [prefix, input, output, payload] = packet;
    event.Set("prefix", Napi::String::New(env_, prefix));
    event.Set("inputIndex", input ? Napi::Value(Napi::Number::New(env_, *input)) : env_.Null());
    event.Set("outputIndex", output ? Napi::Value(Napi::Number::New(env_, *output)) : env_.Null());
    event.Set("payload", Napi::Buffer<uint8_t>::Copy(env_, payload.data(), payload.size()));
    Append(event);
  }

  void AddOverrun() { Append(Named("overrun")); }

  void AddFailure(const KernelError& error) {
    auto event = Named("failure");
    event.Set("error", ToJs(env_, error));
    Append(event);
  }

  const Napi::Array& Array() const { return array_; }

 private:
  template <typename Object>
  void Add(const char* name, bool deleted, const std::optional<Object>& object) {
    // A malformed message counts as lost.
    if (!object) return AddOverrun();
    if (!IsWanted(*object)) return;
    Append(name, deleted, ToJs(env_, *object));
  }

  void AddNeighbour(bool deleted, const std::optional<Neighbour>& neighbour) {
    if (!neighbour || neighbour->header.ndm_family != AF_BRIDGE) return Add("neighbour", deleted, neighbour);
    Append("fdb", deleted, FdbToJs(env_, *neighbour));
  }

  void Append(const char* name, bool deleted, const Napi::Object& value) {
    Append(Assemble(
        env_, Shape::kEvent,
        {{"object", Napi::String::New(env_, name)}, {"deleted", Napi::Boolean::New(env_, deleted)}, {"value", value}}));
  }

  Napi::Object Named(const char* name) {
    auto event = Napi::Object::New(env_);
    event.Set("object", Napi::String::New(env_, name));
    return event;
  }

  void Append(const Napi::Object& event) { array_.Set(length_++, event); }

  Napi::Env env_;
  Napi::Array array_;
  uint32_t length_ = 0;
};

// A subscription's callback, the decoder of its messages, and how long messages may gather before they are read.
struct Listener {
  std::shared_ptr<Napi::FunctionReference> on_events;
  std::function<void(const Message&, Events&)> take;
  std::chrono::milliseconds gather;
};

// A subscription, and its listener. Freed with the function that closes it; the socket, which keeps
// the namespace, goes at once when it is closed.
class Monitor {
 public:
  Monitor(Napi::Env env, Subscription subscription, Listener listener)
      : subscription_(std::move(subscription)),
        listener_(std::move(listener)),
        timer_(std::make_unique<LoopTimer>(env, [this, env] { OnGathered(env); })),
        poll_(std::make_unique<LoopPoll>(env, subscription_->Fd(), [this, env] { OnReadable(env); })) {}

  void Close() {
    poll_.reset();
    timer_.reset();
    subscription_.reset();
    listener_.on_events.reset();
  }

 private:
  void OnReadable(Napi::Env env) {
    const bool waits = !emptying_ && listener_.gather.count() > 0 && timer_->Start(listener_.gather);
    if (waits) {
      poll_->Listen(false);
    } else {
      Read(env);
    }
  }

  void OnGathered(Napi::Env env) {
    poll_->Listen(true);
    Read(env);
  }

  void Read(Napi::Env env) {
    Events events(env);
    auto overrun = subscription_->Read([&](const Message& message) { listener_.take(message, events); });
    emptying_ = !subscription_->Drained();
    if (!overrun) {
      events.AddFailure(overrun.Error());
    } else if (*overrun) {
      events.AddOverrun();
    }
    const auto listener = listener_.on_events;
    if (!overrun) Close();
    if (events.Array().Length() > 0) listener->Call({events.Array()});
  }

  // Nothing once it is closed. Goes after the poll of it.
  std::optional<Subscription> subscription_;
  Listener listener_;
  // Whether the last reading has left something, which does not wait again.
  bool emptying_ = false;
  std::unique_ptr<LoopTimer> timer_;
  std::unique_ptr<LoopPoll> poll_;
};

std::optional<std::vector<uint32_t>> ReadGroups(Napi::Value value) {
  if (!value.IsArray()) return std::nullopt;
  const auto array = value.As<Napi::Array>();
  std::vector<uint32_t> groups;
  for (uint32_t position = 0; position < array.Length(); ++position) {
    const Napi::Value group = ElementAt(array, position);
    if (!group.IsNumber()) return std::nullopt;
    groups.push_back(group.As<Napi::Number>().Uint32Value());
  }
  return groups;
}

// The family and name of each table.
std::optional<std::vector<TableName>> ReadTables(Napi::Value value) {
  if (!value.IsArray()) return std::nullopt;
  const auto array = value.As<Napi::Array>();
  std::vector<TableName> tables;
  for (uint32_t position = 0; position < array.Length(); ++position) {
    ObjectReader reader(ElementAt(array, position), "tables[" + std::to_string(position) + "]");
    tables.push_back({static_cast<uint8_t>(reader.Number("family")), reader.Text("table")});
    if (reader.Failed()) break;
  }
  return tables;
}

// Checks the arguments behind the first, which is good or not already.
std::optional<Listener> ReadListener(const Napi::CallbackInfo& info, bool good, const char* first) {
  if (info.Env().IsExceptionPending()) return std::nullopt;
  if (good && info[1].IsNumber() && info[2].IsFunction()) {
    return Listener{std::make_shared<Napi::FunctionReference>(Napi::Persistent(info[2].As<Napi::Function>())), nullptr,
                    std::chrono::milliseconds(info[1].As<Napi::Number>().Uint32Value())};
  }
  Napi::TypeError::New(info.Env(), std::string(first) + ", gatherMs, onEvents: must be an array, a number, a function")
      .ThrowAsJavaScriptException();
  return std::nullopt;
}

Napi::Value Open(Napi::Env env, const std::shared_ptr<const Netns>& netns, const SubscriptionOptions& options,
                 const Listener& listener) {
  const auto work = [netns, options]() -> Result<Subscription> {
    std::optional<Result<Subscription>> subscription;
    if (auto failure = netns->RunInside([&] { subscription = Subscription::Open(options); })) return *failure;
    return std::move(*subscription);
  };
  const auto convert = [listener](Napi::Env env, Subscription& subscription) -> Napi::Value {
    const auto monitor = std::make_shared<Monitor>(env, std::move(subscription), listener);
    auto object = Napi::Object::New(env);
    object.Set("close", Napi::Function::New(env, [monitor](const Napi::CallbackInfo&) { monitor->Close(); }));
    return object;
  };
  return std::make_shared<JobQueue>()->Promise<Subscription>(env, work, convert);
}

}  // namespace

Napi::Value OpenMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info) {
  const auto groups = ReadGroups(info[0]);
  auto listener = ReadListener(info, groups.has_value(), "groups");
  if (!listener) return {};
  listener->take = [](const Message& message, Events& events) { events.Add(message); };
  return Open(info.Env(), netns, {*groups}, *listener);
}

Napi::Value OpenPacketMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info) {
  ObjectReader reader(info[0], "log");
  const PacketLog log{static_cast<uint16_t>(reader.Number("group")), reader.Number("copyBytes")};
  auto listener = ReadListener(info, !reader.Failed(), "log");
  if (!listener) return {};
  listener->take = [](const Message& message, Events& events) {
    if (!IsLoggedPacket(message)) return;
    if (const auto packet = DecodeLoggedPacket(message.payload)) return events.Add(*packet);
    events.AddOverrun();
  };
  MessageWriter writer;
  WriteBinding(log, writer);
  return Open(info.Env(), netns, {{}, std::nullopt, NETLINK_NETFILTER, writer.Bytes()}, *listener);
}

Napi::Value OpenTableMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info) {
  const auto tables = ReadTables(info[0]);
  auto listener = ReadListener(info, tables.has_value(), "tables");
  if (!listener) return {};
  listener->take = [watch = TableWatch(*tables)](const Message& message, Events& events) mutable {
    if (const auto transaction = watch.Take(message)) events.Add(*transaction);
    if (watch.TakeMalformed()) events.AddOverrun();
  };
  return Open(info.Env(), netns, {{NFNLGRP_NFTABLES}, std::nullopt, NETLINK_NETFILTER}, *listener);
}

}  // namespace podwire::netlink
