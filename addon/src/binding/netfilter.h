#pragma once

#include <napi.h>

#include <memory>

#include "binding/job.h"
#include "socket/netfilter.h"

namespace podwire::netlink {

// Netfilter of a namespace, and the queue of the calls for it. Jobs under way hold both.
struct NetfilterWorker {
  explicit NetfilterWorker(std::shared_ptr<const Netns> netns)
      : netfilter(std::make_shared<Netfilter>(std::move(netns))), queue(std::make_shared<JobQueue>()) {}

  std::shared_ptr<Netfilter> netfilter;
  std::shared_ptr<JobQueue> queue;
};

// Promises of what lib/native.ts says; an empty value leaves a pending exception about the argument.
Napi::Value ChangeElements(const NetfilterWorker& worker, Napi::Value changes);
Napi::Value ReadGeneration(const NetfilterWorker& worker, Napi::Env env);
Napi::Value DeleteConntrack(const NetfilterWorker& worker, Napi::Value filter);
Napi::Value ListConnections(const NetfilterWorker& worker, Napi::Value addresses);
Napi::Value DeleteConnections(const NetfilterWorker& worker, Napi::Value connections);

}  // namespace podwire::netlink
