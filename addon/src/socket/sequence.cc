#include "socket/sequence.h"

#include <linux/rtnetlink.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "socket/sysctl.h"

namespace podwire::netlink {

namespace {

// A name in a message that selects by index is the new one.
bool IsRename(const Request& request) {
  const auto* link = std::get_if<Link>(&request.object);
  return request.type == RTM_SETLINK && link && link->header.ifi_index != 0 && link->name;
}

// One run of a sequence: where it is, and the indexes of links that it has met.
class Run {
 public:
  Run(std::vector<Step>& steps, Socket::Timeout timeout) : steps_(steps), timeout_(timeout) {}

  std::vector<Reply> Finish() {
    while (!ended_ && replies_.size() < steps_.size()) RunStretch();
    replies_.resize(steps_.size(), Reply{KernelError{ECANCELED, "an earlier step failed"}});
    return std::move(replies_);
  }

 private:
  // Steps in one namespace that follow each other, from the next one on.
  void RunStretch() {
    const size_t begin = replies_.size();
    const auto& within = steps_[begin].within;
    size_t end = begin;
    bool inside = !within->Connected();
    while (end < steps_.size() && steps_[end].within == within) {
      inside = inside || std::holds_alternative<SysctlWrite>(steps_[end].action);
      ++end;
    }
    // Sysctl files show the namespace of the thread that opens them; a socket that is open serves any thread.
    if (!inside) return RunUntil(end);
    std::optional<KernelError> failure;
    auto moved = within->GetNetns()->RunInside([&] {
      failure = within->ConnectFromInside();
      if (!failure) RunUntil(end);
    });
    if (moved) failure = std::move(moved);
    if (failure) Add(Reply{std::move(failure)});
  }

  void RunUntil(size_t end) {
    while (!ended_ && replies_.size() < end) Add(RunStep(steps_[replies_.size()]));
  }

  void Add(Reply reply) {
    ended_ = reply.error.has_value() && !steps_[replies_.size()].optional;
    replies_.push_back(std::move(reply));
  }

  Reply RunStep(Step& step) {
    if (const auto* sysctl = std::get_if<SysctlWrite>(&step.action)) return Write(*sysctl);
    auto& request = std::get<Request>(step.action);
    if (request.lookup) {
      auto index = LookUp(*step.within, *request.lookup);
      if (!index) return {NotLookedUp(index.Error(), *request.lookup), std::nullopt};
      request.SetLinkIndex(*index);
    }
    auto reply = step.within->Ask(request, timeout_);
    Learn(step, request, reply);
    return reply;
  }

  static Reply Write(const SysctlWrite& sysctl) {
    Reply reply;
    if (sysctl.read_previous) {
      auto previous = ReadSysctl(sysctl.path);
      if (!previous) return {previous.Error()};
      reply.previous = std::move(*previous);
    }
    reply.error = WriteSysctl(sysctl.path, sysctl.value);
    return reply;
  }

  using Name = std::pair<const Netns*, std::string>;

  Result<uint32_t> LookUp(Namespace& within, const std::string& name) {
    const Name key{within.GetNetns().get(), name};
    if (const auto known = indexes_.find(key); known != indexes_.end()) return known->second;
    auto index = within.LookUp(name, timeout_);
    if (index) indexes_[key] = *index;
    return index;
  }

  // A new pair's indexes are in the kernel's echo; a rename or deletion invalidates the known indexes.
  void Learn(const Step& step, const Request& request, const Reply& reply) {
    if (request.type == RTM_DELLINK || IsRename(request)) indexes_.clear();
    if (request.type != RTM_NEWLINK || reply.error || !reply.link || !reply.link->name) return;
    indexes_[{step.within->GetNetns().get(), *reply.link->name}] = static_cast<uint32_t>(reply.link->header.ifi_index);
    for (const auto& peer : std::get<Link>(request.object).info->peer) {
      if (!reply.link->linked_index || !peer.name) continue;
      indexes_[{request.peer_namespace.get(), *peer.name}] = *reply.link->linked_index;
    }
  }

  std::vector<Step>& steps_;
  Socket::Timeout timeout_;
  std::vector<Reply> replies_;
  std::map<Name, uint32_t> indexes_;
  bool ended_ = false;
};

}  // namespace

std::vector<Reply> RunSequence(std::vector<Step>& steps, Socket::Timeout timeout) {
  return Run(steps, timeout).Finish();
}

}  // namespace podwire::netlink
