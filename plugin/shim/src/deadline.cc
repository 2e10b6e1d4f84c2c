#include "deadline.h"

#include <cerrno>
#include <ctime>

namespace podwire {
namespace {

std::int64_t MonotonicMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace

Deadline Deadline::In(int milliseconds) { return Deadline(MonotonicMs() + milliseconds); }

int Deadline::RemainingMs() const {
  const std::int64_t remaining = at_ms_ - MonotonicMs();
  return remaining > 0 ? static_cast<int>(remaining) : 0;
}

std::uint64_t UnixTimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

void PauseMs(int milliseconds) {
  timespec pause{milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1'000'000};
  while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
  }
}

}  // namespace podwire
