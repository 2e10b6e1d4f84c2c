#pragma once

#include <optional>
#include <string>

#include "socket/result.h"

namespace podwire::netlink {

/** Reads the file below /proc/sys, as the calling thread's namespace has it; without its final line break. */
Result<std::string> read_sysctl(const std::string& path);

/** Writes it, never creating one. EROFS when /proc/sys is read-only. */
std::optional<KernelError> write_sysctl(const std::string& path, const std::string& value);

}  // namespace podwire::netlink
