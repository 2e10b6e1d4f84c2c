#pragma once

#include <napi.h>

#include <memory>
#include <optional>

#include "binding/deletion_batcher.h"
#include "binding/dumps.h"
#include "binding/job.h"
#include "binding/netfilter.h"
#include "socket/sequence.h"

namespace podwire::netlink {

// NativeNamespace of lib/native.ts.
class NamespaceHandle : public Napi::ObjectWrap<NamespaceHandle> {
 public:
  // Per environment, so that worker threads have their own.
  static Napi::FunctionReference Define(Napi::Env env);
  static Napi::Value Open(const Napi::CallbackInfo& info);
  static Napi::Value OpenAtOnce(const Napi::CallbackInfo& info);
  // The promise of a descriptor of a new namespace.
  static Napi::Value Make(const Napi::CallbackInfo& info);

  // The namespace behind a JavaScript value; nothing when it is something else or closed.
  static std::shared_ptr<Namespace> NamespaceOf(Napi::Value value);

  explicit NamespaceHandle(const Napi::CallbackInfo& info);

 private:
  Napi::Value Device(const Napi::CallbackInfo& info);
  Napi::Value Inode(const Napi::CallbackInfo& info);
  Napi::Value Cookie(const Napi::CallbackInfo& info);
  Napi::Value Run(const Napi::CallbackInfo& info);
  template <Dump Function>
  Napi::Value List(const Napi::CallbackInfo& info) {
    return CheckOpen(info) ? Function(*queue_, namespace_, info[0]) : Napi::Value();
  }
  Napi::Value ReadSysctls(const Napi::CallbackInfo& info);
  Napi::Value DeleteLink(const Napi::CallbackInfo& info);
  Napi::Value DeleteConntrack(const Napi::CallbackInfo& info);
  Napi::Value ListConnections(const Napi::CallbackInfo& info);
  Napi::Value DeleteConnections(const Napi::CallbackInfo& info);
  Napi::Value AnnounceAddress(const Napi::CallbackInfo& info);
  Napi::Value SendProbes(const Napi::CallbackInfo& info);
  Napi::Value ListenTcp(const Napi::CallbackInfo& info);
  Napi::Value ChangeElements(const Napi::CallbackInfo& info);
  Napi::Value ReadGeneration(const Napi::CallbackInfo& info);
  Napi::Value Monitor(const Napi::CallbackInfo& info);
  Napi::Value MonitorTables(const Napi::CallbackInfo& info);
  Napi::Value MonitorPackets(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  // All in one send; an empty value leaves a pending exception.
  Napi::Value RunTogether(Napi::Env env, std::vector<Step> steps, Socket::Timeout timeout);

  // Made for the first call. Null leaves a pending exception.
  const NetfilterWorker* OpenNetfilter(const Napi::CallbackInfo& info);

  // False leaves a pending exception.
  bool CheckOpen(const Napi::CallbackInfo& info) const;

  std::shared_ptr<JobQueue> queue_ = std::make_shared<JobQueue>();
  // Probes wait for the network, while other calls wait for the kernel only.
  std::shared_ptr<JobQueue> probes_ = std::make_shared<JobQueue>();
  // Null once it is closed; jobs under way hold it as well.
  std::shared_ptr<Namespace> namespace_;
  // There after the first call for it.
  std::optional<NetfilterWorker> netfilter_;
  // There after the first deletion.
  std::shared_ptr<DeletionBatcher> deletions_;
};

}  // namespace podwire::netlink
