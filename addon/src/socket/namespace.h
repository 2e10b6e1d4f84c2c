#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "socket/netns.h"
#include "socket/socket.h"

namespace podwire::netlink {

// A namespace and the socket in it, which is opened when it is first needed. May be used from any thread; a call waits
// for one that is under way.
class Namespace {
 public:
  static Result<std::shared_ptr<Namespace>> Open(const std::optional<std::string>& path);
  // As Netns::open_at_once: nothing when it fails or would have to wait.
  static std::shared_ptr<Namespace> OpenAtOnce(const std::string& path);

  // The replies to all requests, sent in one datagram after the links they name were looked up.
  std::vector<Reply> Exchange(std::vector<Request> requests, Socket::Timeout timeout);

  std::optional<KernelError> Dump(const DumpRequest& request, const DumpSink& sink);
  std::vector<Result<std::string>> ReadSysctls(const std::vector<std::string>& paths) const;

  // The index of the link with this name.
  Result<uint32_t> LookUp(const std::string& name, Socket::Timeout timeout);
  Reply Ask(const Request& request, Socket::Timeout timeout);

  // Whether netlink can be spoken without moving a thread into the namespace.
  bool Connected();
  // The same for a thread that is inside already: saves the move.
  std::optional<KernelError> ConnectFromInside();

  const std::shared_ptr<const Netns>& GetNetns() const { return netns_; }

 private:
  explicit Namespace(std::shared_ptr<const Netns> netns) : netns_(std::move(netns)) {}
  // Both with `mutex_` held.
  std::optional<KernelError> Connect();
  std::optional<KernelError> OpenSocket();

  std::shared_ptr<const Netns> netns_;
  std::mutex mutex_;
  // Guarded by `mutex_`.
  std::optional<Socket> socket_;
};

// The error of a failed look-up of a link, with the link's name.
KernelError NotLookedUp(const KernelError& error, const std::string& name);

}  // namespace podwire::netlink
