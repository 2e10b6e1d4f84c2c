#include "socket/sequence.h"

#include <linux/rtnetlink.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "socket/sysctl.h"

namespace podwire::netlink {

namespace {

/** A name in a message that selects by index is the new one. */
bool is_rename(const Request& request) {
  const auto* link = std::get_if<Link>(&request.object);
  return request.type == RTM_SETLINK && link && link->index != 0 && link->name;
}

/** One run of a sequence: where it is, and the indexes of links that it has met. */
class Run {
 public:
  Run(std::vector<Step>& steps, Socket::Timeout timeout) : steps_(steps), timeout_(timeout) {}

  std::vector<Reply> finish() {
    while (!ended_ && replies_.size() < steps_.size()) run_stretch();
    replies_.resize(steps_.size(), Reply{KernelError{ECANCELED, "an earlier step failed"}});
    return std::move(replies_);
  }

 private:
  /** Steps in one namespace that follow each other, from the next one on. */
  void run_stretch() {
    const size_t begin = replies_.size();
    const auto& within = steps_[begin].within;
    size_t end = begin;
    bool inside = !within->connected();
    while (end < steps_.size() && steps_[end].within == within) {
      inside = inside || std::holds_alternative<SysctlWrite>(steps_[end].action);
      ++end;
    }
    // Sysctl files show the namespace of the thread that opens them; a socket that is open serves any thread.
    if (!inside) return run_until(end);
    std::optional<KernelError> failure;
    auto moved = within->netns()->run_inside([&] {
      failure = within->connect_from_inside();
      if (!failure) run_until(end);
    });
    if (moved) failure = std::move(moved);
    if (failure) add(Reply{std::move(failure)});
  }

  void run_until(size_t end) {
    while (!ended_ && replies_.size() < end) add(run(steps_[replies_.size()]));
  }

  void add(Reply reply) {
    ended_ = reply.error.has_value() && !steps_[replies_.size()].optional;
    replies_.push_back(std::move(reply));
  }

  Reply run(Step& step) {
    if (const auto* sysctl = std::get_if<SysctlWrite>(&step.action)) return write(*sysctl);
    auto& request = std::get<Request>(step.action);
    if (request.lookup) {
      auto index = look_up(*step.within, *request.lookup);
      if (!index) return {not_looked_up(index.error(), *request.lookup), std::nullopt};
      request.set_link_index(*index);
    }
    auto reply = step.within->ask(request, timeout_);
    learn(step, request, reply);
    return reply;
  }

  static Reply write(const SysctlWrite& sysctl) {
    Reply reply;
    if (sysctl.read_previous) {
      auto previous = read_sysctl(sysctl.path);
      if (!previous) return {previous.error()};
      reply.previous = std::move(*previous);
    }
    reply.error = write_sysctl(sysctl.path, sysctl.value);
    return reply;
  }

  using Name = std::pair<const Netns*, std::string>;

  Result<uint32_t> look_up(Namespace& within, const std::string& name) {
    const Name key{within.netns().get(), name};
    if (const auto known = indexes_.find(key); known != indexes_.end()) return known->second;
    auto index = within.look_up(name, timeout_);
    if (index) indexes_[key] = *index;
    return index;
  }

  /** A new pair's indexes are in the kernel's echo; a link that is renamed or deleted makes what is known doubtful. */
  void learn(const Step& step, const Request& request, const Reply& reply) {
    if (request.type == RTM_DELLINK || is_rename(request)) indexes_.clear();
    if (request.type != RTM_NEWLINK || reply.error || !reply.link || !reply.link->name) return;
    indexes_[{step.within->netns().get(), *reply.link->name}] = static_cast<uint32_t>(reply.link->index);
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

std::vector<Reply> run_sequence(std::vector<Step>& steps, Socket::Timeout timeout) {
  return Run(steps, timeout).finish();
}

}  // namespace podwire::netlink
