#include "binding/deletion_batcher.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <utility>

#include "binding/job.h"
#include "binding/values.h"
#include "object/link.h"

namespace podwire::netlink {

namespace {

bool matches(const Deletion& deletion, const Link& link) {
  return deletion.name.empty() ? deletion.index == static_cast<uint32_t>(link.index) : deletion.name == link.name;
}

Result<Subscription> subscribe_to_deletions(const Netns& netns) {
  const SubscriptionOptions options{{RTNLGRP_LINK}, RTM_DELLINK};
  std::optional<Result<Subscription>> subscription;
  if (auto failure = netns.run_inside([&] { subscription = Subscription::open(options); })) return *failure;
  return std::move(*subscription);
}

}  // namespace

std::shared_ptr<DeletionBatcher> DeletionBatcher::make(Napi::Env env, std::shared_ptr<const Netns> netns) {
  return std::shared_ptr<DeletionBatcher>(new DeletionBatcher(env, std::move(netns)));
}

DeletionBatcher::DeletionBatcher(Napi::Env env, std::shared_ptr<const Netns> netns) : env_(env), netns_(std::move(netns)) {
  napi_add_env_cleanup_hook(env_, on_environment_end, this);
}

DeletionBatcher::~DeletionBatcher() { napi_remove_env_cleanup_hook(env_, on_environment_end, this); }

void DeletionBatcher::on_environment_end(void* batcher) {
  auto& self = *static_cast<DeletionBatcher*>(batcher);
  if (self.deleter_) self.submit_collected();
  self.discard_all();
}

Napi::Promise DeletionBatcher::add(uint32_t index, std::string name) {
  const Napi::Promise::Deferred promise(env_);
  const bool first = pending_.empty();
  const uint64_t id = next_id_++;
  pending_.emplace(id, Pending{{id, index, std::move(name)}, promise});
  collected_.push_back(id);
  if (first) self_ = shared_from_this();
  if (deleter_) {
    results_poll_->hold(true);
    submit_if_idle();
  } else if (first) {
    subscribe();
  }
  return promise.Promise();
}

void DeletionBatcher::subscribe() {
  auto done = [batcher = shared_from_this()](Napi::Env, Result<Subscription>& subscription) {
    if (subscription) {
      batcher->start(std::move(*subscription));
      return;
    }
    batcher->reject_all(subscription.error());
  };
  auto work = [netns = netns_] { return subscribe_to_deletions(*netns); };
  std::make_shared<JobQueue>()->add(env_, std::make_unique<CallbackJob<Subscription>>(std::move(work), std::move(done)));
}

void DeletionBatcher::start(Subscription subscription) {
  auto deleter = Deleter::open(netns_);
  if (!deleter) return reject_all(deleter.error());
  subscription_ = std::move(subscription);
  deleter_ = std::move(*deleter);
  notifications_poll_ = std::make_unique<LoopPoll>(env_, subscription_->fd(), [this] { on_notifications(); });
  results_poll_ = std::make_unique<LoopPoll>(env_, deleter_->event_fd(), [this] { on_results(); });
  results_poll_->hold(true);
  submit_if_idle();
}

void DeletionBatcher::submit_if_idle() {
  if (unsettled_.empty()) submit_collected();
}

void DeletionBatcher::submit_collected() {
  if (collected_.empty()) return;
  std::vector<Deletion> deletions;
  for (const uint64_t id : std::exchange(collected_, {})) {
    const auto pending = pending_.find(id);
    if (pending->second.promise) {
      deletions.push_back(pending->second.deletion);
      unsettled_.insert(id);
    } else {
      // The kernel has notified the removal: a link of that name is a new one.
      pending_.erase(pending);
    }
  }
  if (!deletions.empty()) deleter_->submit(std::move(deletions));
}

void DeletionBatcher::on_notifications() {
  // An overrun or a failure needs no action: the results arrive.
  (void)subscription_->read([this](const Message& message) {
    const auto link = message.type == RTM_DELLINK ? decode_link(message.payload) : std::nullopt;
    // A bridge notifies a port that leaves with the same type, in its own family.
    if (!link || link->family != AF_UNSPEC) return;
    for (auto& [id, pending] : pending_) {
      if (matches(pending.deletion, *link)) settle(pending, std::nullopt);
    }
  });
  submit_if_idle();
}

void DeletionBatcher::on_results() {
  const auto keep = shared_from_this();
  for (const auto& result : deleter_->take_results()) {
    const auto found = pending_.find(result.id);
    if (found == pending_.end()) continue;
    settle(found->second, result.error);
    pending_.erase(found);
  }
  submit_if_idle();
  if (pending_.empty()) discard_all();
}

void DeletionBatcher::settle(Pending& pending, const std::optional<KernelError>& error) {
  const auto promise = std::exchange(pending.promise, std::nullopt);
  if (!promise) return;
  unsettled_.erase(pending.deletion.id);
  if (error) {
    promise->Reject(to_js(env_, *error));
  } else {
    promise->Resolve(env_.Undefined());
  }
}

void DeletionBatcher::reject_all(const KernelError& error) {
  for (auto& [id, pending] : pending_) settle(pending, error);
  discard_all();
}

void DeletionBatcher::discard_all() {
  pending_.clear();
  collected_.clear();
  unsettled_.clear();
  if (results_poll_) results_poll_->hold(false);
  // This may be the last reference: no statement may follow.
  self_.reset();
}

}  // namespace podwire::netlink
