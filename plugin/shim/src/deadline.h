// A point in time that bounds every wait of the process.
#pragma once

#include <cstdint>

namespace podwire {

class Deadline {
 public:
  static Deadline In(int milliseconds);

  int RemainingMs() const;  // 0 when it has passed
  bool HasPassed() const { return RemainingMs() == 0; }

 private:
  explicit Deadline(std::int64_t at_ms) : at_ms_(at_ms) {}

  std::int64_t at_ms_;  // of the monotonic clock: setting the node's time must not move it
};

std::uint64_t UnixTimeNs();

void PauseMs(int milliseconds);

}  // namespace podwire
