#include "binding/loop_timer.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace podwire::netlink {

LoopTimer::LoopTimer(Napi::Env env, std::function<void()> elapsed)
    : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!fd_) return;
  poll_.emplace(env, fd_.get(), [this, elapsed = std::move(elapsed)] {
    uint64_t expirations = 0;
    if (::read(fd_.get(), &expirations, sizeof expirations) == sizeof expirations) elapsed();
  });
}

bool LoopTimer::start(std::chrono::milliseconds delay) {
  itimerspec when{};
  when.it_value.tv_sec = delay.count() / 1000;
  when.it_value.tv_nsec = delay.count() % 1000 * 1'000'000;
  return fd_ && ::timerfd_settime(fd_.get(), 0, &when, nullptr) == 0;
}

}  // namespace podwire::netlink
