#pragma once

#include <napi.h>

#include <memory>

#include "binding/deletion_batcher.h"
#include "binding/job.h"
#include "socket/sequence.h"

namespace podwire::netlink {

/** NativeNamespace of lib/native.ts. */
class NamespaceHandle : public Napi::ObjectWrap<NamespaceHandle> {
 public:
  /** Per environment, so that worker threads have their own. */
  static Napi::FunctionReference define(Napi::Env env);
  static Napi::Value open(const Napi::CallbackInfo& info);
  static Napi::Value open_at_once(const Napi::CallbackInfo& info);

  /** The namespace behind a JavaScript value; nothing when it is something else or closed. */
  static std::shared_ptr<Namespace> namespace_of(Napi::Value value);

  explicit NamespaceHandle(const Napi::CallbackInfo& info);

 private:
  Napi::Value device(const Napi::CallbackInfo& info);
  Napi::Value inode(const Napi::CallbackInfo& info);
  Napi::Value cookie(const Napi::CallbackInfo& info);
  Napi::Value run(const Napi::CallbackInfo& info);
  Napi::Value dump_links(const Napi::CallbackInfo& info);
  Napi::Value dump_addresses(const Napi::CallbackInfo& info);
  Napi::Value dump_routes(const Napi::CallbackInfo& info);
  Napi::Value dump_rules(const Napi::CallbackInfo& info);
  Napi::Value dump_fdb(const Napi::CallbackInfo& info);
  Napi::Value dump_neighbours(const Napi::CallbackInfo& info);
  Napi::Value read_sysctls(const Napi::CallbackInfo& info);
  Napi::Value delete_link(const Napi::CallbackInfo& info);
  Napi::Value delete_conntrack(const Napi::CallbackInfo& info);
  Napi::Value announce_address(const Napi::CallbackInfo& info);
  Napi::Value monitor(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  /** All in one send; an empty value leaves a pending exception. */
  Napi::Value run_together(Napi::Env env, std::vector<Step> steps, Socket::Timeout timeout);

  /** False leaves a pending exception. */
  bool check_open(const Napi::CallbackInfo& info) const;

  std::shared_ptr<JobQueue> queue_ = std::make_shared<JobQueue>();
  /** Null once it is closed; jobs under way hold it as well. */
  std::shared_ptr<Namespace> namespace_;
  /** There after the first deletion. */
  std::shared_ptr<DeletionBatcher> deletions_;
};

}  // namespace podwire::netlink
