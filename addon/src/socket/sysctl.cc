#include "socket/sysctl.h"

#include <fcntl.h>

#include <cerrno>
#include <mutex>

#include "socket/unique_fd.h"

namespace podwire::netlink {

namespace {

// Shared by all threads of the process, so that they use the same mount of proc.
std::mutex proc_mutex;
std::string proc_directory = "/proc";

UniqueFd OpenSysctl(const std::string& path, int mode) {
  std::string file;
  {
    const std::lock_guard<std::mutex> guard(proc_mutex);
    file = proc_directory + "/sys/" + path;
  }
  return UniqueFd(::open(file.c_str(), mode | O_CLOEXEC));
}

}  // namespace

void SetProcDirectory(const std::string& directory) {
  const std::lock_guard<std::mutex> guard(proc_mutex);
  proc_directory = directory;
}

Result<std::string> ReadSysctl(const std::string& path) {
  const UniqueFd file = OpenSysctl(path, O_RDONLY);
  if (!file) return KernelError{errno, ""};
  std::string value;
  char part[512];
  for (;;) {
    const ssize_t size = read(file.Get(), part, sizeof part);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return KernelError{errno, ""};
    if (size == 0) break;
    value.append(part, static_cast<size_t>(size));
  }
  if (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

std::optional<KernelError> WriteSysctl(const std::string& path, const std::string& value) {
  const UniqueFd file = OpenSysctl(path, O_WRONLY);
  if (!file) return KernelError{errno, ""};
  // A sysctl takes a value in one write or not at all.
  ssize_t written = 0;
  do {
    written = write(file.Get(), value.data(), value.size());
  } while (written < 0 && errno == EINTR);
  if (written < 0) return KernelError{errno, ""};
  if (static_cast<size_t>(written) != value.size()) return KernelError{EIO, "the value was taken in part"};
  return std::nullopt;
}

}  // namespace podwire::netlink
