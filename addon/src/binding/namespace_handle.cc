#include "binding/namespace_handle.h"

#include "binding/dumps.h"
#include "binding/shape.h"
#include "binding/monitor.h"
#include "binding/object_reader.h"
#include "binding/steps.h"
#include "socket/announcement.h"
#include "socket/conntrack.h"

namespace podwire::netlink {

namespace {

constexpr napi_type_tag kTypeTag = {0x706f647769726500, 0x6e657473706e6373};

using Replies = std::vector<Reply>;
using Readings = std::vector<Result<std::string>>;

Napi::Value to_outcomes(Napi::Env env, Replies& replies) {
  auto array = Napi::Array::New(env, replies.size());
  for (uint32_t position = 0; position < replies.size(); ++position) {
    const Napi::HandleScope scope(env);
    const auto& [error, link, previous] = replies[position];
    array.Set(position, assemble(env, Shape::kOutcome,
                                 {{"error", to_js_or_null(env, error)},
                                  {"link", to_js_or_null(env, link)},
                                  {"previous", text_or_null(env, previous)}}));
  }
  return array;
}

Napi::Value to_readings(Napi::Env env, Readings& readings) {
  auto array = Napi::Array::New(env, readings.size());
  for (uint32_t position = 0; position < readings.size(); ++position) {
    auto& reading = readings[position];
    auto object = Napi::Object::New(env);
    object.Set("error", reading ? env.Null() : Napi::Value(to_js(env, reading.error())));
    object.Set("value", reading ? Napi::Value(Napi::String::New(env, *reading)) : env.Null());
    array.Set(position, object);
  }
  return array;
}

std::vector<std::string> read_paths(Napi::Value value) {
  std::vector<std::string> paths;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), "paths: must be an array").ThrowAsJavaScriptException();
    return paths;
  }
  const auto array = value.As<Napi::Array>();
  for (uint32_t position = 0; position < array.Length(); ++position) {
    const Napi::Value path = array.Get(position);
    if (!path.IsString()) {
      const std::string where = "paths[" + std::to_string(position) + "]";
      Napi::TypeError::New(value.Env(), where + ": must be a string").ThrowAsJavaScriptException();
      return paths;
    }
    paths.push_back(path.As<Napi::String>().Utf8Value());
  }
  return paths;
}

}  // namespace

Napi::FunctionReference NamespaceHandle::define(Napi::Env env) {
  return Napi::Persistent(DefineClass(env, "NativeNamespace",
                                      {
                                          InstanceAccessor<&NamespaceHandle::device>("device"),
                                          InstanceAccessor<&NamespaceHandle::inode>("inode"),
                                          InstanceAccessor<&NamespaceHandle::cookie>("cookie"),
                                          InstanceMethod<&NamespaceHandle::run>("run"),
                                          InstanceMethod<&NamespaceHandle::dump_links>("dumpLinks"),
                                          InstanceMethod<&NamespaceHandle::dump_addresses>("dumpAddresses"),
                                          InstanceMethod<&NamespaceHandle::dump_routes>("dumpRoutes"),
                                          InstanceMethod<&NamespaceHandle::dump_rules>("dumpRules"),
                                          InstanceMethod<&NamespaceHandle::dump_fdb>("dumpFdb"),
                                          InstanceMethod<&NamespaceHandle::dump_neighbours>("dumpNeighbours"),
                                          InstanceMethod<&NamespaceHandle::read_sysctls>("readSysctls"),
                                          InstanceMethod<&NamespaceHandle::delete_link>("deleteLink"),
                                          InstanceMethod<&NamespaceHandle::delete_conntrack>("deleteConntrack"),
                                          InstanceMethod<&NamespaceHandle::announce_address>("announceAddress"),
                                          InstanceMethod<&NamespaceHandle::monitor>("monitor"),
                                          InstanceMethod<&NamespaceHandle::close>("close"),
                                      }));
}

Napi::Value NamespaceHandle::open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsNull() && !info[0].IsString()) {
    Napi::TypeError::New(env, "path: must be a string or null").ThrowAsJavaScriptException();
    return {};
  }
  std::optional<std::string> path;
  if (info[0].IsString()) path = info[0].As<Napi::String>().Utf8Value();
  using Opened = std::shared_ptr<Namespace>;
  return std::make_shared<JobQueue>()->promise<Opened>(
      env, [path] { return Namespace::open(path); },
      [](Napi::Env env, Opened& opened) -> Napi::Value {
        return env.GetInstanceData<Environment>()->namespaces.New({Napi::External<Opened>::New(env, &opened)});
      });
}

Napi::Value NamespaceHandle::open_at_once(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsString()) {
    Napi::TypeError::New(env, "path: must be a string").ThrowAsJavaScriptException();
    return {};
  }
  auto opened = Namespace::open_at_once(info[0].As<Napi::String>().Utf8Value());
  if (!opened) return env.Null();
  using Opened = std::shared_ptr<Namespace>;
  return env.GetInstanceData<Environment>()->namespaces.New({Napi::External<Opened>::New(env, &opened)});
}

std::shared_ptr<Namespace> NamespaceHandle::namespace_of(Napi::Value value) {
  if (!value.IsObject() || !value.As<Napi::Object>().CheckTypeTag(&kTypeTag)) return nullptr;
  return Unwrap(value.As<Napi::Object>())->namespace_;
}

NamespaceHandle::NamespaceHandle(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  if (!info[0].IsExternal()) {
    Napi::TypeError::New(info.Env(), "a namespace is made by openNamespace").ThrowAsJavaScriptException();
    return;
  }
  namespace_ = *info[0].As<Napi::External<std::shared_ptr<Namespace>>>().Data();
  info.This().As<Napi::Object>().TypeTag(&kTypeTag);
}

bool NamespaceHandle::check_open(const Napi::CallbackInfo& info) const {
  if (namespace_) return true;
  Napi::Error::New(info.Env(), "the namespace is closed").ThrowAsJavaScriptException();
  return false;
}

Napi::Value NamespaceHandle::device(const Napi::CallbackInfo& info) {
  if (!check_open(info)) return {};
  return Napi::BigInt::New(info.Env(), static_cast<uint64_t>(namespace_->netns()->device()));
}

Napi::Value NamespaceHandle::inode(const Napi::CallbackInfo& info) {
  if (!check_open(info)) return {};
  return Napi::BigInt::New(info.Env(), static_cast<uint64_t>(namespace_->netns()->inode()));
}

Napi::Value NamespaceHandle::cookie(const Napi::CallbackInfo& info) {
  if (!check_open(info)) return {};
  const auto cookie = namespace_->netns()->cookie();
  return cookie ? Napi::Value(Napi::BigInt::New(info.Env(), *cookie)) : info.Env().Null();
}

Napi::Value NamespaceHandle::run(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!check_open(info)) return {};
  auto steps = read_steps(info[0], namespace_);
  ObjectReader options(info[1], "options");
  const bool sequential = options.flag("sequential");
  const Socket::Timeout timeout(options.number("timeoutMs"));
  if (options.failed()) return {};
  if (!sequential) return run_together(env, std::move(steps), timeout);
  // Shared only because std::function must be copyable.
  const auto shared = std::make_shared<std::vector<Step>>(std::move(steps));
  const auto work = [shared, timeout]() -> Result<Replies> { return run_sequence(*shared, timeout); };
  return queue_->promise<Replies>(env, work, to_outcomes);
}

Napi::Value NamespaceHandle::run_together(Napi::Env env, std::vector<Step> steps, Socket::Timeout timeout) {
  std::vector<Request> requests;
  for (auto& step : steps) {
    auto* request = std::get_if<Request>(&step.action);
    if (!request || step.within != namespace_) {
      Napi::TypeError::New(env, "steps: must be netlink in one namespace").ThrowAsJavaScriptException();
      return {};
    }
    requests.push_back(std::move(*request));
  }
  const auto work = [within = namespace_, requests = std::move(requests), timeout]() -> Result<Replies> {
    return within->exchange(requests, timeout);
  };
  return queue_->promise<Replies>(env, work, to_outcomes);
}

Napi::Value NamespaceHandle::dump_links(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_links(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::dump_addresses(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_addresses(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::dump_routes(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_routes(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::dump_rules(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_rules(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::dump_fdb(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_fdb(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::dump_neighbours(const Napi::CallbackInfo& info) {
  return check_open(info) ? netlink::dump_neighbours(*queue_, namespace_, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::read_sysctls(const Napi::CallbackInfo& info) {
  if (!check_open(info)) return {};
  const auto paths = read_paths(info[0]);
  if (info.Env().IsExceptionPending()) return {};
  const auto work = [within = namespace_, paths]() -> Result<Readings> { return within->read_sysctls(paths); };
  return queue_->promise<Readings>(info.Env(), work, to_readings);
}

Napi::Value NamespaceHandle::delete_link(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!check_open(info)) return {};
  ObjectReader selector(info[0], "link");
  const uint32_t index = selector.number("index");
  const std::string name = selector.optional_text("name").value_or("");
  if (selector.failed()) return {};
  if (!deletions_) deletions_ = DeletionBatcher::make(env, namespace_->netns());
  return deletions_->add(index, name);
}

Napi::Value NamespaceHandle::delete_conntrack(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!check_open(info)) return {};
  const auto address = info[0].IsString() ? IpAddress::parse(info[0].As<Napi::String>().Utf8Value()) : std::nullopt;
  if (!address) {
    Napi::TypeError::New(env, "address: must be an IP address").ThrowAsJavaScriptException();
    return {};
  }
  const auto work = [netns = namespace_->netns(), address = *address] { return netlink::delete_conntrack(*netns, address); };
  return queue_->promise<uint32_t>(
      env, work, [](Napi::Env env, uint32_t& count) -> Napi::Value { return Napi::Number::New(env, count); });
}

Napi::Value NamespaceHandle::announce_address(const Napi::CallbackInfo& info) {
  if (!check_open(info)) return {};
  ObjectReader reader(info[0], "announcement");
  const uint32_t index = reader.number("index");
  const auto address = IpAddress::parse(reader.text("address"));
  const bool router = reader.flag("router");
  if (!address) reader.fail("address", "an IP address");
  if (reader.failed()) return {};
  const Announcement announcement{index, *address, router};
  const auto work = [netns = namespace_->netns(), announcement]() -> Result<std::monostate> {
    if (auto failure = netlink::announce_address(*netns, announcement)) return *failure;
    return std::monostate();
  };
  return queue_->promise<std::monostate>(
      info.Env(), work, [](Napi::Env env, std::monostate&) -> Napi::Value { return env.Undefined(); });
}

Napi::Value NamespaceHandle::monitor(const Napi::CallbackInfo& info) {
  return check_open(info) ? open_monitor(namespace_->netns(), info) : Napi::Value();
}

Napi::Value NamespaceHandle::close(const Napi::CallbackInfo& info) {
  deletions_.reset();
  // The last job of the queue; with it go the socket and the namespace's file.
  const auto work = [within = std::exchange(namespace_, nullptr)]() -> Result<std::monostate> {
    return std::monostate();
  };
  return queue_->promise<std::monostate>(
      info.Env(), work, [](Napi::Env env, std::monostate&) -> Napi::Value { return env.Undefined(); });
}

}  // namespace podwire::netlink
