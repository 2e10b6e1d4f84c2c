#include "binding/namespace_handle.h"

#include "binding/monitor.h"
#include "binding/object_reader.h"
#include "binding/shape.h"
#include "binding/steps.h"
#include "probe/probe.h"
#include "socket/announcement.h"

namespace podwire::netlink {

namespace {

constexpr napi_type_tag kTypeTag = {0x706f647769726500, 0x6e657473706e6373};

using Replies = std::vector<Reply>;
using Readings = std::vector<Result<std::string>>;

Napi::Value ToOutcomes(Napi::Env env, Replies& replies) {
  auto array = Napi::Array::New(env, replies.size());
  for (uint32_t position = 0; position < replies.size(); ++position) {
    const Napi::HandleScope scope(env);
    const auto& [error, link, previous, qdisc] = replies[position];
    array.Set(position, Assemble(env, Shape::kOutcome,
                                 {{"error", ToJsOrNull(env, error)},
                                  {"link", ToJsOrNull(env, link)},
                                  {"previous", TextOrNull(env, previous)},
                                  {"qdisc", ToJsOrNull(env, qdisc)}}));
  }
  return array;
}

Napi::Value ToReadings(Napi::Env env, Readings& readings) {
  auto array = Napi::Array::New(env, readings.size());
  for (uint32_t position = 0; position < readings.size(); ++position) {
    auto& reading = readings[position];
    auto object = Napi::Object::New(env);
    object.Set("error", reading ? env.Null() : Napi::Value(ToJs(env, reading.Error())));
    object.Set("value", reading ? Napi::Value(Napi::String::New(env, *reading)) : env.Null());
    array.Set(position, object);
  }
  return array;
}

std::vector<std::string> ReadPaths(Napi::Value value) {
  std::vector<std::string> paths;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), "paths: must be an array").ThrowAsJavaScriptException();
    return paths;
  }
  const auto array = value.As<Napi::Array>();
  for (uint32_t position = 0; position < array.Length(); ++position) {
    const Napi::Value path = ElementAt(array, position);
    if (!path.IsString()) {
      const std::string where = "paths[" + std::to_string(position) + "]";
      Napi::TypeError::New(value.Env(), where + ": must be a string").ThrowAsJavaScriptException();
      return paths;
    }
    paths.push_back(path.As<Napi::String>().Utf8Value());
  }
  return paths;
}

std::vector<Probe> ReadProbes(Napi::Value value) {
  std::vector<Probe> probes;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), "probes: must be an array").ThrowAsJavaScriptException();
    return probes;
  }
  const auto array = value.As<Napi::Array>();
  for (uint32_t position = 0; position < array.Length() && !value.Env().IsExceptionPending(); ++position) {
    ObjectReader reader(ElementAt(array, position), "probes[" + std::to_string(position) + "]");
    Probe probe;
    const auto address = IpAddress::Parse(reader.Text("address"));
    if (address) {
      probe.address = *address;
    } else {
      reader.Fail("address", "an IP address");
    }
    probe.port = static_cast<uint16_t>(reader.Number("port"));
    probe.udp = reader.Flag("udp");
    probe.payload_bytes = reader.Number("payloadBytes");
    probes.push_back(probe);
  }
  return probes;
}

using ProbeAnswers = std::vector<ProbeAnswer>;

Napi::Value ToProbeAnswers(Napi::Env env, ProbeAnswers& answers) {
  auto array = Napi::Array::New(env, answers.size());
  for (uint32_t position = 0; position < answers.size(); ++position) {
    const auto& [error, milliseconds, reporter, mtu_bytes] = answers[position];
    auto object = Napi::Object::New(env);
    object.Set("errno", Napi::Number::New(env, error));
    object.Set("milliseconds", Napi::Number::New(env, milliseconds));
    object.Set("reporter", reporter ? Napi::Value(Napi::String::New(env, reporter->Text())) : env.Null());
    object.Set("mtuBytes", Napi::Number::New(env, mtu_bytes));
    array.Set(position, object);
  }
  return array;
}

Napi::Value ToDescriptor(Napi::Env env, int& descriptor) { return Napi::Number::New(env, descriptor); }

}  // namespace

Napi::FunctionReference NamespaceHandle::Define(Napi::Env env) {
  return Napi::Persistent(DefineClass(env, "NativeNamespace",
                                      {
                                          InstanceAccessor<&NamespaceHandle::Device>("device"),
                                          InstanceAccessor<&NamespaceHandle::Inode>("inode"),
                                          InstanceAccessor<&NamespaceHandle::Cookie>("cookie"),
                                          InstanceMethod<&NamespaceHandle::Run>("run"),
                                          InstanceMethod<&NamespaceHandle::List<DumpLinks>>("dumpLinks"),
                                          InstanceMethod<&NamespaceHandle::List<DumpAddresses>>("dumpAddresses"),
                                          InstanceMethod<&NamespaceHandle::List<DumpRoutes>>("dumpRoutes"),
                                          InstanceMethod<&NamespaceHandle::List<DumpRules>>("dumpRules"),
                                          InstanceMethod<&NamespaceHandle::List<DumpFdb>>("dumpFdb"),
                                          InstanceMethod<&NamespaceHandle::List<DumpNeighbours>>("dumpNeighbours"),
                                          InstanceMethod<&NamespaceHandle::ReadSysctls>("readSysctls"),
                                          InstanceMethod<&NamespaceHandle::DeleteLink>("deleteLink"),
                                          InstanceMethod<&NamespaceHandle::DeleteConntrack>("deleteConntrack"),
                                          InstanceMethod<&NamespaceHandle::ListConnections>("listConnections"),
                                          InstanceMethod<&NamespaceHandle::DeleteConnections>("deleteConnections"),
                                          InstanceMethod<&NamespaceHandle::AnnounceAddress>("announceAddress"),
                                          InstanceMethod<&NamespaceHandle::SendProbes>("probe"),
                                          InstanceMethod<&NamespaceHandle::ListenTcp>("listenTcp"),
                                          InstanceMethod<&NamespaceHandle::ChangeElements>("changeElements"),
                                          InstanceMethod<&NamespaceHandle::ReadGeneration>("readGeneration"),
                                          InstanceMethod<&NamespaceHandle::Monitor>("monitor"),
                                          InstanceMethod<&NamespaceHandle::MonitorTables>("monitorTables"),
                                          InstanceMethod<&NamespaceHandle::MonitorPackets>("monitorPackets"),
                                          InstanceMethod<&NamespaceHandle::Close>("close"),
                                      }));
}

Napi::Value NamespaceHandle::Open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsNull() && !info[0].IsString()) {
    Napi::TypeError::New(env, "path: must be a string or null").ThrowAsJavaScriptException();
    return {};
  }
  std::optional<std::string> path;
  if (info[0].IsString()) path = info[0].As<Napi::String>().Utf8Value();
  using Opened = std::shared_ptr<Namespace>;
  return std::make_shared<JobQueue>()->Promise<Opened>(
      env, [path] { return Namespace::Open(path); },
      [](Napi::Env env, Opened& opened) -> Napi::Value {
        return env.GetInstanceData<Environment>()->namespaces.New({Napi::External<Opened>::New(env, &opened)});
      });
}

Napi::Value NamespaceHandle::OpenAtOnce(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsString()) {
    Napi::TypeError::New(env, "path: must be a string").ThrowAsJavaScriptException();
    return {};
  }
  auto opened = Namespace::OpenAtOnce(info[0].As<Napi::String>().Utf8Value());
  if (!opened) return env.Null();
  using Opened = std::shared_ptr<Namespace>;
  return env.GetInstanceData<Environment>()->namespaces.New({Napi::External<Opened>::New(env, &opened)});
}

std::shared_ptr<Namespace> NamespaceHandle::NamespaceOf(Napi::Value value) {
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

bool NamespaceHandle::CheckOpen(const Napi::CallbackInfo& info) const {
  if (namespace_) return true;
  Napi::Error::New(info.Env(), "the namespace is closed").ThrowAsJavaScriptException();
  return false;
}

Napi::Value NamespaceHandle::Device(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  return Napi::BigInt::New(info.Env(), static_cast<uint64_t>(namespace_->GetNetns()->Device()));
}

Napi::Value NamespaceHandle::Inode(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  return Napi::BigInt::New(info.Env(), static_cast<uint64_t>(namespace_->GetNetns()->Inode()));
}

Napi::Value NamespaceHandle::Cookie(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  const auto cookie = namespace_->GetNetns()->Cookie();
  return cookie ? Napi::Value(Napi::BigInt::New(info.Env(), *cookie)) : info.Env().Null();
}

Napi::Value NamespaceHandle::Run(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!CheckOpen(info)) return {};
  auto steps = ReadSteps(info[0], namespace_);
  ObjectReader options(info[1], "options");
  const bool sequential = options.Flag("sequential");
  const Socket::Timeout timeout(options.Number("timeoutMs"));
  if (options.Failed()) return {};
  if (!sequential) return RunTogether(env, std::move(steps), timeout);
  // Shared only because std::function must be copyable.
  const auto shared = std::make_shared<std::vector<Step>>(std::move(steps));
  const auto work = [shared, timeout]() -> Result<Replies> { return RunSequence(*shared, timeout); };
  return queue_->Promise<Replies>(env, work, ToOutcomes);
}

Napi::Value NamespaceHandle::RunTogether(Napi::Env env, std::vector<Step> steps, Socket::Timeout timeout) {
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
    return within->Exchange(requests, timeout);
  };
  return queue_->Promise<Replies>(env, work, ToOutcomes);
}

Napi::Value NamespaceHandle::ReadSysctls(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  const auto paths = ReadPaths(info[0]);
  if (info.Env().IsExceptionPending()) return {};
  const auto work = [within = namespace_, paths]() -> Result<Readings> { return within->ReadSysctls(paths); };
  return queue_->Promise<Readings>(info.Env(), work, ToReadings);
}

Napi::Value NamespaceHandle::DeleteLink(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!CheckOpen(info)) return {};
  ObjectReader selector(info[0], "link");
  const uint32_t index = selector.Number("index");
  const std::string name = selector.OptionalText("name").value_or("");
  if (selector.Failed()) return {};
  if (!deletions_) deletions_ = DeletionBatcher::Make(env, namespace_->GetNetns());
  return deletions_->Add(index, name);
}

Napi::Value NamespaceHandle::DeleteConntrack(const Napi::CallbackInfo& info) {
  const auto* worker = OpenNetfilter(info);
  return worker ? netlink::DeleteConntrack(*worker, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::ListConnections(const Napi::CallbackInfo& info) {
  const auto* worker = OpenNetfilter(info);
  return worker ? netlink::ListConnections(*worker, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::DeleteConnections(const Napi::CallbackInfo& info) {
  const auto* worker = OpenNetfilter(info);
  return worker ? netlink::DeleteConnections(*worker, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::AnnounceAddress(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  ObjectReader reader(info[0], "announcement");
  const uint32_t index = reader.Number("index");
  const auto address = IpAddress::Parse(reader.Text("address"));
  const bool router = reader.Flag("router");
  if (!address) reader.Fail("address", "an IP address");
  if (reader.Failed()) return {};
  const Announcement announcement{index, *address, router};
  const auto work = [netns = namespace_->GetNetns(), announcement]() -> Result<std::monostate> {
    if (auto failure = netlink::AnnounceAddress(*netns, announcement)) return *failure;
    return std::monostate();
  };
  return queue_->Promise<std::monostate>(info.Env(), work,
                                         [](Napi::Env env, std::monostate&) -> Napi::Value { return env.Undefined(); });
}

Napi::Value NamespaceHandle::SendProbes(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  const auto probes = ReadProbes(info[0]);
  ObjectReader options(info[1], "options");
  const std::chrono::milliseconds timeout(options.Number("timeoutMs"));
  if (options.Failed()) return {};
  const auto work = [netns = namespace_->GetNetns(), probes, timeout] { return RunProbes(*netns, probes, timeout); };
  return probes_->Promise<ProbeAnswers>(info.Env(), work, ToProbeAnswers);
}

Napi::Value NamespaceHandle::ListenTcp(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return {};
  ObjectReader options(info[0], "options");
  const auto port = static_cast<uint16_t>(options.Number("port"));
  if (options.Failed()) return {};
  const auto work = [netns = namespace_->GetNetns(), port] { return netlink::ListenTcp(*netns, port); };
  return queue_->Promise<int>(info.Env(), work, ToDescriptor);
}

Napi::Value NamespaceHandle::Make(const Napi::CallbackInfo& info) {
  return std::make_shared<JobQueue>()->Promise<int>(info.Env(), MakeNetns, ToDescriptor);
}

const NetfilterWorker* NamespaceHandle::OpenNetfilter(const Napi::CallbackInfo& info) {
  if (!CheckOpen(info)) return nullptr;
  if (!netfilter_) netfilter_.emplace(namespace_->GetNetns());
  return &*netfilter_;
}

Napi::Value NamespaceHandle::ChangeElements(const Napi::CallbackInfo& info) {
  const auto* worker = OpenNetfilter(info);
  return worker ? netlink::ChangeElements(*worker, info[0]) : Napi::Value();
}

Napi::Value NamespaceHandle::ReadGeneration(const Napi::CallbackInfo& info) {
  const auto* worker = OpenNetfilter(info);
  return worker ? netlink::ReadGeneration(*worker, info.Env()) : Napi::Value();
}

Napi::Value NamespaceHandle::Monitor(const Napi::CallbackInfo& info) {
  return CheckOpen(info) ? OpenMonitor(namespace_->GetNetns(), info) : Napi::Value();
}

Napi::Value NamespaceHandle::MonitorTables(const Napi::CallbackInfo& info) {
  return CheckOpen(info) ? OpenTableMonitor(namespace_->GetNetns(), info) : Napi::Value();
}

Napi::Value NamespaceHandle::MonitorPackets(const Napi::CallbackInfo& info) {
  return CheckOpen(info) ? OpenPacketMonitor(namespace_->GetNetns(), info) : Napi::Value();
}

Napi::Value NamespaceHandle::Close(const Napi::CallbackInfo& info) {
  deletions_.reset();
  netfilter_.reset();
  // The last job of the queue; with it go the socket and the namespace's file.
  const auto work = [within = std::exchange(namespace_, nullptr)]() -> Result<std::monostate> {
    return std::monostate();
  };
  return queue_->Promise<std::monostate>(info.Env(), work,
                                         [](Napi::Env env, std::monostate&) -> Napi::Value { return env.Undefined(); });
}

}  // namespace podwire::netlink
