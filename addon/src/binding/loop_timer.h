#pragma once

#include <napi.h>

#include <chrono>
#include <functional>
#include <optional>

#include "binding/loop_poll.h"
#include "socket/unique_fd.h"

namespace podwire::netlink {

/**
 * Calls back on the environment's thread some time after it was started. Does not keep the process alive. For the environment's
 * thread only.
 */
class LoopTimer {
 public:
  /** `elapsed` runs as the callback of a {@link LoopPoll} does, and may destroy this object. */
  LoopTimer(Napi::Env env, std::function<void()> elapsed);

  /** Calls back once. False when the kernel has no timer to spare; then nothing is called. */
  bool start(std::chrono::milliseconds delay);

 private:
  UniqueFd fd_;
  std::optional<LoopPoll> poll_;
};

}  // namespace podwire::netlink
