#include "ready_lease.h"

#include <sys/stat.h>

#include <cstdint>

#include "deadline.h"
#include "protocol.h"
#include "text/buffer.h"

namespace podwire {

namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

}  // namespace

bool HoldsReadyLease(std::string_view socket_path) {
  const std::string_view folder = socket_path.substr(0, socket_path.rfind('/') + 1);
  struct stat found {};
  const Buffer path = Concat({folder, kReadyFile, std::string_view("\0", 1)});
  if (stat(path.View().data(), &found) != 0 || found.st_mtim.tv_sec < 0) return false;
  const std::uint64_t until_ns = static_cast<std::uint64_t>(found.st_mtim.tv_sec) * kNsPerSecond +
                                 static_cast<std::uint64_t>(found.st_mtim.tv_nsec);
  const std::uint64_t now_ns = UnixTimeNs();
  // A clock that was set back must not prolong it.
  return until_ns > now_ns && until_ns - now_ns <= kMaxReadyLeaseNs;
}

}  // namespace podwire
