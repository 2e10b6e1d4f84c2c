#include "binding/deletion_desk.h"

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

std::shared_ptr<DeletionDesk> DeletionDesk::make(Napi::Env env, std::shared_ptr<const Netns> netns) {
  return std::shared_ptr<DeletionDesk>(new DeletionDesk(env, std::move(netns)));
}

DeletionDesk::DeletionDesk(Napi::Env env, std::shared_ptr<const Netns> netns) : env_(env), netns_(std::move(netns)) {
  napi_add_env_cleanup_hook(env_, on_environment_end, this);
}

DeletionDesk::~DeletionDesk() { napi_remove_env_cleanup_hook(env_, on_environment_end, this); }

void DeletionDesk::on_environment_end(void* desk) {
  auto& self = *static_cast<DeletionDesk*>(desk);
  if (self.deleter_) self.submit_gathered();
  self.forget_all();
}

Napi::Promise DeletionDesk::add(uint32_t index, std::string name) {
  const Napi::Promise::Deferred promise(env_);
  const bool first = pending_.empty();
  const uint64_t id = next_id_++;
  pending_.emplace(id, Pending{{id, index, std::move(name)}, promise});
  gathered_.push_back(id);
  if (first) self_ = shared_from_this();
  if (deleter_) {
    results_poll_->hold(true);
    go_on();
  } else if (first) {
    subscribe();
  }
  return promise.Promise();
}

void DeletionDesk::subscribe() {
  auto done = [desk = shared_from_this()](Napi::Env, Result<Subscription>& subscription) {
    if (subscription) {
      desk->start(std::move(*subscription));
      return;
    }
    desk->refuse_all(subscription.error());
  };
  auto work = [netns = netns_] { return subscribe_to_deletions(*netns); };
  std::make_shared<JobQueue>()->add(env_, std::make_unique<CallbackJob<Subscription>>(std::move(work), std::move(done)));
}

void DeletionDesk::start(Subscription subscription) {
  auto deleter = Deleter::open(netns_);
  if (!deleter) return refuse_all(deleter.error());
  subscription_ = std::move(subscription);
  deleter_ = std::move(*deleter);
  notifications_poll_ = std::make_unique<LoopPoll>(env_, subscription_->fd(), [this] { on_notifications(); });
  results_poll_ = std::make_unique<LoopPoll>(env_, deleter_->event_fd(), [this] { on_results(); });
  results_poll_->hold(true);
  go_on();
}

void DeletionDesk::go_on() {
  if (unsettled_.empty()) submit_gathered();
}

void DeletionDesk::submit_gathered() {
  if (gathered_.empty()) return;
  std::vector<Deletion> deletions;
  for (const uint64_t id : std::exchange(gathered_, {})) {
    const auto pending = pending_.find(id);
    if (pending->second.promise) {
      deletions.push_back(pending->second.deletion);
      unsettled_.insert(id);
    } else {
      // Announced meanwhile. A link of that name that is there by now is another one.
      pending_.erase(pending);
    }
  }
  if (!deletions.empty()) deleter_->submit(std::move(deletions));
}

void DeletionDesk::on_notifications() {
  // Neither an overrun nor a failure needs anything to be done: the answers still come.
  (void)subscription_->read([this](const Message& message) {
    const auto link = message.type == RTM_DELLINK ? decode_link(message.payload) : std::nullopt;
    // A bridge announces the leaving of a port by the same type, in its own family.
    if (!link || link->family != AF_UNSPEC) return;
    for (auto& [id, pending] : pending_) {
      if (matches(pending.deletion, *link)) settle(pending, std::nullopt);
    }
  });
  go_on();
}

void DeletionDesk::on_results() {
  const auto keep = shared_from_this();
  for (const auto& result : deleter_->take_results()) {
    const auto found = pending_.find(result.id);
    if (found == pending_.end()) continue;
    settle(found->second, result.error);
    pending_.erase(found);
  }
  go_on();
  if (pending_.empty()) forget_all();
}

void DeletionDesk::settle(Pending& pending, const std::optional<KernelError>& error) {
  const auto promise = std::exchange(pending.promise, std::nullopt);
  if (!promise) return;
  unsettled_.erase(pending.deletion.id);
  if (error) {
    promise->Reject(to_js(env_, *error));
  } else {
    promise->Resolve(env_.Undefined());
  }
}

void DeletionDesk::refuse_all(const KernelError& error) {
  for (auto& [id, pending] : pending_) settle(pending, error);
  forget_all();
}

void DeletionDesk::forget_all() {
  pending_.clear();
  gathered_.clear();
  unsettled_.clear();
  if (results_poll_) results_poll_->hold(false);
  // May be the last owner: nothing may follow.
  self_.reset();
}

}  // namespace podwire::netlink
