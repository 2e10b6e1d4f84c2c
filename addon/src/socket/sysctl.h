#pragma once

#include <optional>
#include <string>

#include "socket/result.h"

namespace podwire::netlink {

// Selects the mount of proc whose `sys` is read and written, for the whole process; at first /proc. The kernel takes
// the network namespace of a file below sys/net from the thread that opens it, so the mount of another process works as
// well.
void SetProcDirectory(const std::string& directory);

// Reads the file below /proc/sys, as the calling thread's namespace has it; without its final line break.
Result<std::string> ReadSysctl(const std::string& path);

// Writes it, never creating one. EROFS when /proc/sys is read-only.
std::optional<KernelError> WriteSysctl(const std::string& path, const std::string& value);

}  // namespace podwire::netlink
