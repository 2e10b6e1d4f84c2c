#include "binding/monitor.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "binding/job.h"
#include "binding/loop_poll.h"
#include "binding/shape.h"
#include "binding/values.h"
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
bool IsWanted(const Link& link) { return link.family == AF_UNSPEC; }
bool IsWanted(const Address& address) { return IsIp(address.family); }
bool IsWanted(const Route& route) { return IsIp(route.family); }
bool IsWanted(const Neighbour& neighbour) { return IsIp(neighbour.family); }

// The events of one turn of the loop, as JavaScript values.
class Events {
 public:
  explicit Events(Napi::Env env) : env_(env), array_(Napi::Array::New(env)) {}

  void Add(const Message& message) {
    switch (message.type) {
      case RTM_NEWLINK:
      case RTM_DELLINK:
        return Add("link", message.type == RTM_DELLINK, DecodeLink(message.payload));
      case RTM_NEWADDR:
      case RTM_DELADDR:
        return Add("address", message.type == RTM_DELADDR, DecodeAddress(message.payload));
      case RTM_NEWROUTE:
      case RTM_DELROUTE:
        return Add("route", message.type == RTM_DELROUTE, DecodeRoute(message.payload));
      case RTM_NEWNEIGH:
      case RTM_DELNEIGH:
        return AddNeighbour(message.type == RTM_DELNEIGH, DecodeNeighbour(message.payload));
      default:
        return;
    }
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
    // What cannot be read is as good as lost.
    if (!object) return AddOverrun();
    if (!IsWanted(*object)) return;
    Append(name, deleted, ToJs(env_, *object));
  }

  void AddNeighbour(bool deleted, const std::optional<Neighbour>& neighbour) {
    if (!neighbour || neighbour->family != AF_BRIDGE) return Add("neighbour", deleted, neighbour);
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

// Who hears of a subscription, and how long what is announced may gather before it is read.
struct Listener {
  std::shared_ptr<Napi::FunctionReference> on_events;
  std::chrono::milliseconds gather;
};

// A subscription, and the function that hears of it. Freed with the function that closes it; the socket, which keeps
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
    auto overrun = subscription_->Read([&](const Message& message) { events.Add(message); });
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
    const Napi::Value group = array.Get(position);
    if (!group.IsNumber()) return std::nullopt;
    groups.push_back(group.As<Napi::Number>().Uint32Value());
  }
  return groups;
}

}  // namespace

Napi::Value OpenMonitor(const std::shared_ptr<const Netns>& netns, const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto groups = ReadGroups(info[0]);
  if (!groups || !info[1].IsNumber() || !info[2].IsFunction()) {
    Napi::TypeError::New(env, "groups, gatherMs, onEvents: must be an array of numbers, a number, and a function")
        .ThrowAsJavaScriptException();
    return {};
  }
  const Listener listener{std::make_shared<Napi::FunctionReference>(Napi::Persistent(info[2].As<Napi::Function>())),
                          std::chrono::milliseconds(info[1].As<Napi::Number>().Uint32Value())};
  const auto work = [netns, groups]() -> Result<Subscription> {
    std::optional<Result<Subscription>> subscription;
    const SubscriptionOptions options{*groups, std::nullopt};
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

}  // namespace podwire::netlink
