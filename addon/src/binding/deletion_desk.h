#pragma once

#include <napi.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "binding/loop_poll.h"
#include "socket/deleter.h"
#include "socket/netns.h"
#include "socket/subscription.h"

namespace podwire::netlink {

/**
 * Promises of deletions. Each settles with the first event: the kernel's notification of the removal, or the answer to the
 * request. An overrun of the notifications only costs time: the answer still arrives.
 *
 * Deletions requested while earlier ones are neither announced nor answered are collected, and submitted together. A single one
 * is submitted at once.
 *
 * Lives while a deletion is in flight, even when the namespace's handle is gone. For the environment's thread only.
 */
class DeletionDesk : public std::enable_shared_from_this<DeletionDesk> {
 public:
  static std::shared_ptr<DeletionDesk> make(Napi::Env env, std::shared_ptr<const Netns> netns);
  ~DeletionDesk();
  DeletionDesk(const DeletionDesk&) = delete;
  DeletionDesk& operator=(const DeletionDesk&) = delete;

  Napi::Promise add(uint32_t index, std::string name);

 private:
  struct Pending {
    Deletion deletion;
    /** Nothing once it is settled; the answer is still to come. */
    std::optional<Napi::Promise::Deferred> promise;
  };

  DeletionDesk(Napi::Env env, std::shared_ptr<const Netns> netns);
  static void on_environment_end(void* desk);
  void subscribe();
  void start(Subscription subscription);
  void on_notifications();
  void on_results();
  /** Submits what was collected, unless an earlier submission is in flight. */
  void go_on();
  void submit_gathered();
  void settle(Pending& pending, const std::optional<KernelError>& error);
  /** Fails all when nothing could be submitted. The next deletion starts over. */
  void refuse_all(const KernelError& error);
  void forget_all();

  Napi::Env env_;
  std::shared_ptr<const Netns> netns_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending> pending_;
  /** Pending, and not handed on yet; in their order. */
  std::vector<uint64_t> gathered_;
  /** Pending, handed on, and neither announced nor answered. */
  std::set<uint64_t> unsettled_;
  /** Set while there is something pending. */
  std::shared_ptr<DeletionDesk> self_;

  // There once the subscription is made; nothing is sent before. The polls go before what they watch.
  std::unique_ptr<Deleter> deleter_;
  std::optional<Subscription> subscription_;
  std::unique_ptr<LoopPoll> results_poll_;
  std::unique_ptr<LoopPoll> notifications_poll_;
};

}  // namespace podwire::netlink
