#pragma once

#include <napi.h>

#include <functional>
#include <memory>

namespace podwire::netlink {

// Calls back on the environment's thread when a file descriptor can be read. Does not keep the process alive unless
// `hold` says so. The descriptor must stay open as long as this object lives. For the environment's thread only.
class LoopPoll {
 public:
  // `ready` runs with a handle scope, and with what it settles followed up as after any callback.
  LoopPoll(Napi::Env env, int fd, std::function<void()> ready);
  ~LoopPoll();
  LoopPoll(const LoopPoll&) = delete;
  LoopPoll& operator=(const LoopPoll&) = delete;

  // Whether the process stays alive for it.
  void Hold(bool held);

  // Whether it calls back, as it does from the start.
  void Listen(bool listens);

 private:
  struct Handle;
  static void Close(Handle* handle);

  // Null once the environment has ended. libuv frees it, later than this object.
  Handle* handle_;
};

}  // namespace podwire::netlink
