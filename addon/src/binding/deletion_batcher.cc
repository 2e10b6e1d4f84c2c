#include "binding/deletion_batcher.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <utility>

#include "binding/job.h"
#include "binding/values.h"
#include "object/link.h"

namespace podwire::netlink {

namespace {

bool Matches(const Deletion& deletion, const Link& link) {
  return deletion.name.empty() ? deletion.index == static_cast<uint32_t>(link.header.ifi_index)
                               : deletion.name == link.name;
}

Result<Subscription> SubscribeToDeletions(const Netns& netns) {
  const SubscriptionOptions options{{RTNLGRP_LINK}, RTM_DELLINK};
  std::optional<Result<Subscription>> subscription;
  if (auto failure = netns.RunInside([&] { subscription = Subscription::Open(options); })) return *failure;
  return std::move(*subscription);
}

}  // namespace

std::shared_ptr<DeletionBatcher> DeletionBatcher::Make(Napi::Env env, std::shared_ptr<const Netns> netns) {
  return std::shared_ptr<DeletionBatcher>(new DeletionBatcher(env, std::move(netns)));
}

DeletionBatcher::DeletionBatcher(Napi::Env env, std::shared_ptr<const Netns> netns)
    : env_(env), netns_(std::move(netns)) {
  napi_add_env_cleanup_hook(env_, OnEnvironmentEnd, this);
}

DeletionBatcher::~DeletionBatcher() { napi_remove_env_cleanup_hook(env_, OnEnvironmentEnd, this); }

void DeletionBatcher::OnEnvironmentEnd(void* batcher) {
  auto& self = *static_cast<DeletionBatcher*>(batcher);
  if (self.deleter_) self.SubmitCollected();
  self.DiscardAll();
}

Napi::Promise DeletionBatcher::Add(uint32_t index, std::string name) {
  const Napi::Promise::Deferred promise(env_);
  const bool first = pending_.empty();
  const uint64_t id = next_id_++;
  pending_.emplace(id, Pending{{id, index, std::move(name)}, promise});
  collected_.push_back(id);
  if (first) self_ = shared_from_this();
  if (deleter_) {
    results_poll_->Hold(true);
    SubmitIfIdle();
  } else if (first) {
    Subscribe();
  }
  return promise.Promise();
}

void DeletionBatcher::Subscribe() {
  auto done = [batcher = shared_from_this()](Napi::Env, Result<Subscription>& subscription) {
    if (subscription) {
      batcher->Start(std::move(*subscription));
      return;
    }
    batcher->RejectAll(subscription.Error());
  };
  auto work = [netns = netns_] { return SubscribeToDeletions(*netns); };
  std::make_shared<JobQueue>()->Add(env_,
                                    std::make_unique<CallbackJob<Subscription>>(std::move(work), std::move(done)));
}

void DeletionBatcher::Start(Subscription subscription) {
  auto deleter = Deleter::Open(netns_);
  if (!deleter) return RejectAll(deleter.Error());
  subscription_ = std::move(subscription);
  deleter_ = std::move(*deleter);
  notifications_poll_ = std::make_unique<LoopPoll>(env_, subscription_->Fd(), [this] { OnNotifications(); });
  results_poll_ = std::make_unique<LoopPoll>(env_, deleter_->EventFd(), [this] { OnResults(); });
  results_poll_->Hold(true);
  SubmitIfIdle();
}

void DeletionBatcher::SubmitIfIdle() {
  if (unsettled_.empty()) SubmitCollected();
}

void DeletionBatcher::SubmitCollected() {
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
  if (!deletions.empty()) deleter_->Submit(std::move(deletions));
}

void DeletionBatcher::OnNotifications() {
  // An overrun or a failure needs no action: the results arrive.
  (void)subscription_->Read([this](const Message& message) {
    const auto link = message.type == RTM_DELLINK ? DecodeLink(message.payload) : std::nullopt;
    // A bridge notifies a port that leaves with the same type, in its own family.
    if (!link || link->header.ifi_family != AF_UNSPEC) return;
    for (auto& [id, pending] : pending_) {
      if (Matches(pending.deletion, *link)) Settle(pending, std::nullopt);
    }
  });
  SubmitIfIdle();
}

void DeletionBatcher::OnResults() {
  const auto keep = shared_from_this();
  for (const auto& result : deleter_->TakeResults()) {
    const auto found = pending_.find(result.id);
    if (found == pending_.end()) continue;
    Settle(found->second, result.error);
    pending_.erase(found);
  }
  SubmitIfIdle();
  if (pending_.empty()) DiscardAll();
}

void DeletionBatcher::Settle(Pending& pending, const std::optional<KernelError>& error) {
  const auto promise = std::exchange(pending.promise, std::nullopt);
  if (!promise) return;
  unsettled_.erase(pending.deletion.id);
  if (error) {
    promise->Reject(ToJs(env_, *error));
  } else {
    promise->Resolve(env_.Undefined());
  }
}

void DeletionBatcher::RejectAll(const KernelError& error) {
  for (auto& [id, pending] : pending_) Settle(pending, error);
  DiscardAll();
}

void DeletionBatcher::DiscardAll() {
  pending_.clear();
  collected_.clear();
  unsettled_.clear();
  if (results_poll_) results_poll_->Hold(false);
  // This may be the last reference: no statement may follow.
  self_.reset();
}

}  // namespace podwire::netlink
