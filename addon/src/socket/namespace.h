#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "socket/netns.h"
#include "socket/socket.h"

namespace podwire::netlink {

struct SysctlWrite {
  std::string path;
  std::string value;
};

/** One step of a run. */
struct Step {
  std::variant<Request, SysctlWrite> action;
  /** Its failure does not end a sequence. */
  bool optional = false;
};

/** A namespace and the socket in it. For one thread at a time, whichever it is. */
class Namespace {
 public:
  static Result<std::shared_ptr<Namespace>> open(const std::optional<std::string>& path);

  /** All requests in one datagram, after their names were looked up; without sysctls. */
  std::vector<Reply> run_together(std::vector<Step>& steps, Socket::Timeout timeout);

  /** One step after the other, up to the first failure; the others have ECANCELED. */
  std::vector<Reply> run_in_turn(std::vector<Step>& steps, Socket::Timeout timeout);

  std::optional<KernelError> dump(const DumpRequest& request, const DumpSink& sink) {
    return socket_.dump(request, sink);
  }

  std::vector<Result<std::string>> read_sysctls(const std::vector<std::string>& paths) const;

  const std::shared_ptr<const Netns>& netns() const { return netns_; }

 private:
  Namespace(std::shared_ptr<const Netns> netns, Socket socket) : netns_(std::move(netns)), socket_(std::move(socket)) {}
  Reply run(Step& step, Socket::Timeout timeout);
  std::vector<Reply> run_here(std::vector<Step>& steps, Socket::Timeout timeout);

  std::shared_ptr<const Netns> netns_;
  Socket socket_;
};

}  // namespace podwire::netlink
