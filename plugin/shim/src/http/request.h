// The HTTP request that forwards a CNI call to the resident plugin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "deadline.h"
#include "environment.h"
#include "failure.h"
#include "text/buffer.h"

namespace podwire {

struct Call {
  Environment environment;
  std::string_view plugin;          // the name that the runtime executed, without its folder
  std::uint64_t exec_time_unix_ns;  // when the process started
  Deadline deadline;                // of everything that the process does
};

// Writes everything up to the body. Refuses (code 4) a value that HTTP would not carry unchanged: control characters,
// which could begin a header of their own, and spaces at either end, which the receiver would drop.
std::optional<Failure> WriteRequestHead(const Call& call, std::size_t body_bytes, Buffer& head);

}  // namespace podwire
