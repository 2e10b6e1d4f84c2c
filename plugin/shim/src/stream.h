// Complete reads and writes on the three standard streams, for any kind of file behind them.
#pragma once

#include <cstddef>
#include <string_view>

#include "deadline.h"
#include "text/buffer.h"

namespace podwire {

// Fills closed standard streams, so that no socket opened later can be taken for stdout, and lets a reader that has
// gone away be an error of write instead of a signal. To be called before anything is opened.
void PrepareStandardStreams();

enum class ReadOutcome { kEnd, kTooLarge, kTimeout, kError /* errno says why */ };

struct ReadLimits {
  std::size_t max_bytes;
  Deadline deadline;
};

ReadOutcome ReadToEnd(int descriptor, const ReadLimits& limits, Buffer& bytes);

// False when the reader has gone away, or takes nothing until the deadline.
bool WriteAll(int descriptor, std::string_view bytes, const Deadline& deadline);

// Waits for one of `events`, or an error condition, and returns what there is (all as in poll(2)); 0 when the deadline
// passed first.
short WaitFor(int descriptor, short events, const Deadline& deadline);

}  // namespace podwire
