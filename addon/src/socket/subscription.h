#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "message/reader.h"
#include "socket/result.h"
#include "socket/unique_fd.h"

namespace podwire::netlink {

struct SubscriptionOptions {
  // RTNLGRP_* of linux/rtnetlink.h; of another protocol, its groups.
  std::vector<uint32_t> groups;
  // When given, the kernel drops messages of any other type before they reach the queue.
  std::optional<uint16_t> only_type = std::nullopt;
  // NETLINK_ROUTE or NETLINK_NETFILTER.
  int protocol = 0;
  // A message that asks for notifications without a group, and for an acknowledgement; empty for none.
  std::vector<uint8_t> request = {};
};

// A socket that hears the kernel's notifications. Never waits; its owner polls `fd`. For one thread at a time.
class Subscription {
 public:
  // In the calling thread's namespace. Everything that happens after it returns will be heard.
  static Result<Subscription> Open(const SubscriptionOptions& options);

  // Passes on queued notifications, at most a bounded number of datagrams, as the descriptor stays readable when there
  // are more. True when the kernel dropped notifications because they were not read fast enough. That is returned once
  // the queue is empty: until then the kernel drops further ones without another report, so that a caller that re-reads
  // the full state too early would miss them.
  Result<bool> Read(const std::function<void(const Message&)>& take);

  // Whether the last `read` has left nothing.
  bool Drained() const { return drained_; }

  int Fd() const { return fd_.Get(); }

 private:
  explicit Subscription(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::vector<uint8_t> buffer_;
  bool overrun_ = false;
  bool drained_ = false;
};

}  // namespace podwire::netlink
