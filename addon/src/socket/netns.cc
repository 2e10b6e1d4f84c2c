#include "socket/netns.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>

namespace podwire::netlink {

namespace {

constexpr const char* kOwnPath = "/proc/self/ns/net";

// O_NONBLOCK: a path that turns out to be a FIFO must not hold the thread.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

// RESOLVE_CACHED of linux/openat2.h since 5.12: fails with EAGAIN rather than wait.
constexpr uint64_t kResolveCached = 0x20;

// NS_GET_ID of linux/nsfs.h since 6.18, which headers of older releases lack.
constexpr unsigned long kGetId = _IOR(NSIO, 13, uint64_t);

// SO_NETNS_COOKIE of asm-generic/socket.h since 5.14.
constexpr int kNetnsCookie = 71;

std::optional<uint64_t> CookieOfOwn() {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (!probe || getsockopt(probe.Get(), SOL_SOCKET, kNetnsCookie, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

}  // namespace

Result<Netns> Netns::Open(const std::optional<std::string>& path) {
  UniqueFd fd(::open(path ? path->c_str() : kOwnPath, kOpenFlags));
  if (!fd) return KernelError{errno, ""};
  auto netns = Of(std::move(fd));
  if (netns) netns->cookie_ = netns->ReadCookie();
  return netns;
}

std::optional<Netns> Netns::OpenAtOnce(const std::string& path) {
  // O_PATH: opens no file of a foreign file system before the path is known to be on the kernel's own for namespaces.
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = kResolveCached;
  const UniqueFd place(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
  struct statfs system {};
  if (!place || fstatfs(place.Get(), &system) != 0 || system.f_type != NSFS_MAGIC) return std::nullopt;
  UniqueFd fd(::open(("/proc/self/fd/" + std::to_string(place.Get())).c_str(), kOpenFlags));
  if (!fd) return std::nullopt;
  auto netns = Of(std::move(fd));
  if (!netns) return std::nullopt;
  netns->cookie_ = netns->AskCookie();
  if (!netns->cookie_) return std::nullopt;
  return std::move(*netns);
}

Result<Netns> Netns::Of(UniqueFd fd) {
  Netns netns;
  netns.fd_ = std::move(fd);
  if (ioctl(netns.fd_.Get(), NS_GET_NSTYPE) != CLONE_NEWNET) {
    return KernelError{EINVAL, "the file is not a network namespace"};
  }
  struct stat status {};
  struct stat own {};
  if (fstat(netns.fd_.Get(), &status) != 0 || stat(kOwnPath, &own) != 0) return KernelError{errno, ""};
  netns.device_ = status.st_dev;
  netns.inode_ = status.st_ino;
  netns.own_ = status.st_dev == own.st_dev && status.st_ino == own.st_ino;
  return netns;
}

std::optional<uint64_t> Netns::AskCookie() const {
  uint64_t id = 0;
  if (ioctl(fd_.Get(), kGetId, &id) != 0) return std::nullopt;
  return id;
}

std::optional<uint64_t> Netns::ReadCookie() const {
  if (const auto id = AskCookie()) return id;
  // Older kernels report it only inside the namespace. Without permission to enter it, a later operation fails.
  std::optional<uint64_t> cookie;
  if (RunInside([&] { cookie = CookieOfOwn(); })) return std::nullopt;
  return cookie;
}

std::optional<KernelError> Netns::Enter() const {
  if (own_ || setns(fd_.Get(), CLONE_NEWNET) == 0) return std::nullopt;
  return KernelError{errno, "cannot enter the network namespace"};
}

std::optional<KernelError> Netns::RunInside(const std::function<void()>& task) const {
  if (own_) {
    task();
    return std::nullopt;
  }
  std::optional<KernelError> failure;
  try {
    std::thread([&] {
      failure = Enter();
      if (!failure) task();
    }).join();
  } catch (const std::system_error& error) {
    return KernelError{error.code().value(), "cannot start a thread"};
  }
  return failure;
}

}  // namespace podwire::netlink
