#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "socket/result.h"
#include "socket/unique_fd.h"

namespace podwire::netlink {

// A network namespace, held open.
//
// Work inside a foreign namespace runs on a thread made for it, which ends there: a thread of libuv's pool that moved
// and could not move back would serve its next task in the wrong namespace.
class Netns {
 public:
  // Opens the namespace of the path, or the process's own. EINVAL: the file is not a network namespace.
  static Result<Netns> Open(const std::optional<std::string>& path);

  // Like `open`, but never blocks: for the event loop. Empty on any failure, when the kernel does not have the path in
  // its cache, or when it reports a namespace's cookie only inside it (before 6.18).
  static std::optional<Netns> OpenAtOnce(const std::string& path);

  // Runs `task` inside, and waits for it. Gives the reason when it could not be run.
  std::optional<KernelError> RunInside(const std::function<void()>& task) const;

  // Moves the calling thread in permanently. Only for dedicated threads.
  std::optional<KernelError> Enter() const;

  // Whether it is the process's own, so that no thread has to move.
  bool Own() const { return own_; }
  int Fd() const { return fd_.Get(); }
  dev_t Device() const { return device_; }
  ino_t Inode() const { return inode_; }
  // Unique to a network namespace in one boot; inodes are reused. Nothing on kernels before 5.14.
  std::optional<uint64_t> Cookie() const { return cookie_; }

 private:
  static Result<Netns> Of(UniqueFd fd);
  std::optional<uint64_t> AskCookie() const;
  std::optional<uint64_t> ReadCookie() const;

  UniqueFd fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::optional<uint64_t> cookie_;
  bool own_ = false;
};

}  // namespace podwire::netlink
