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

// Deletes interfaces in batches: deletions requested while a batch is in flight form the next one (RTM_DELLINK by
// group). A promise settles with the first of two events: the kernel's notification of the removal, or the result of
// the deletion. An overrun of notifications only costs time.
//
// Owns itself while a deletion is in flight, even when the namespace's handle is gone. For the environment's thread
// only.
class DeletionBatcher : public std::enable_shared_from_this<DeletionBatcher> {
 public:
  static std::shared_ptr<DeletionBatcher> Make(Napi::Env env, std::shared_ptr<const Netns> netns);
  ~DeletionBatcher();
  DeletionBatcher(const DeletionBatcher&) = delete;
  DeletionBatcher& operator=(const DeletionBatcher&) = delete;

  Napi::Promise Add(uint32_t index, std::string name);

 private:
  struct Pending {
    Deletion deletion;
    // Empty once it is settled, before the result arrives.
    std::optional<Napi::Promise::Deferred> promise;
  };

  DeletionBatcher(Napi::Env env, std::shared_ptr<const Netns> netns);
  static void OnEnvironmentEnd(void* batcher);
  void Subscribe();
  void Start(Subscription subscription);
  void OnNotifications();
  void OnResults();
  // Submits the collected deletions, unless a batch is in flight.
  void SubmitIfIdle();
  void SubmitCollected();
  void Settle(Pending& pending, const std::optional<KernelError>& error);
  // Rejects all if no deletion can be submitted. The next one subscribes again.
  void RejectAll(const KernelError& error);
  void DiscardAll();

  Napi::Env env_;
  std::shared_ptr<const Netns> netns_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending> pending_;
  // Pending and not submitted, in the order of the requests.
  std::vector<uint64_t> collected_;
  // Submitted, and neither notified nor finished: the batch in flight.
  std::set<uint64_t> unsettled_;
  // Set while a deletion is pending.
  std::shared_ptr<DeletionBatcher> self_;

  // Set with the subscription; nothing is submitted before. The polls are destroyed before their file descriptors.
  std::unique_ptr<Deleter> deleter_;
  std::optional<Subscription> subscription_;
  std::unique_ptr<LoopPoll> results_poll_;
  std::unique_ptr<LoopPoll> notifications_poll_;
};

}  // namespace podwire::netlink
