#include "socket/namespace.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "socket/sysctl.h"

namespace podwire::netlink {

namespace {

bool is_sysctl(const Step& step) { return std::holds_alternative<SysctlWrite>(step.action); }

KernelError not_looked_up(const KernelError& error, const std::string& name) {
  return {error.number, error.text.empty() ? "link " + name : error.text + " (link " + name + ")"};
}

}  // namespace

Result<std::shared_ptr<Namespace>> Namespace::open(const std::optional<std::string>& path) {
  auto netns = Netns::open(path);
  if (!netns) return netns.error();
  std::optional<Result<Socket>> socket;
  if (auto failure = netns->run_inside([&] { socket = Socket::open(); })) return *failure;
  if (!*socket) return socket->error();
  return std::shared_ptr<Namespace>(
      new Namespace(std::make_shared<const Netns>(std::move(*netns)), std::move(**socket)));
}

std::vector<Reply> Namespace::run_together(std::vector<Step>& steps, Socket::Timeout timeout) {
  std::vector<Reply> replies(steps.size());
  std::map<std::string, Result<uint32_t>> indexes;
  std::vector<Request> requests;
  std::vector<size_t> positions;
  for (size_t position = 0; position < steps.size(); ++position) {
    auto& request = std::get<Request>(steps[position].action);
    if (request.lookup) {
      auto found = indexes.find(*request.lookup);
      if (found == indexes.end()) {
        found = indexes.emplace(*request.lookup, socket_.look_up(*request.lookup, timeout)).first;
      }
      if (!found->second) {
        replies[position].error = not_looked_up(found->second.error(), *request.lookup);
        continue;
      }
      request.set_link_index(*found->second);
    }
    requests.push_back(std::move(request));
    positions.push_back(position);
  }
  auto answers = socket_.exchange(requests, timeout);
  for (size_t sent = 0; sent < answers.size(); ++sent) replies[positions[sent]] = std::move(answers[sent]);
  return replies;
}

std::vector<Reply> Namespace::run_in_turn(std::vector<Step>& steps, Socket::Timeout timeout) {
  // Sysctl files show the namespace of the thread that opens them; netlink alone needs no move.
  if (netns_->own() || std::none_of(steps.begin(), steps.end(), is_sysctl)) return run_here(steps, timeout);
  std::vector<Reply> replies;
  if (const auto failure = netns_->run_inside([&] { replies = run_here(steps, timeout); })) {
    replies.assign(steps.size(), Reply{*failure, std::nullopt});
  }
  return replies;
}

std::vector<Reply> Namespace::run_here(std::vector<Step>& steps, Socket::Timeout timeout) {
  std::vector<Reply> replies;
  replies.reserve(steps.size());
  for (auto& step : steps) {
    replies.push_back(run(step, timeout));
    if (replies.back().error && !step.optional) break;
  }
  replies.resize(steps.size(), Reply{KernelError{ECANCELED, "an earlier step failed"}, std::nullopt});
  return replies;
}

Reply Namespace::run(Step& step, Socket::Timeout timeout) {
  if (const auto* sysctl = std::get_if<SysctlWrite>(&step.action)) {
    return {write_sysctl(sysctl->path, sysctl->value), std::nullopt};
  }
  auto& request = std::get<Request>(step.action);
  if (request.lookup) {
    auto index = socket_.look_up(*request.lookup, timeout);
    if (!index) return {not_looked_up(index.error(), *request.lookup), std::nullopt};
    request.set_link_index(*index);
  }
  std::vector<Request> single;
  single.push_back(std::move(request));
  return std::move(socket_.exchange(single, timeout).front());
}

std::vector<Result<std::string>> Namespace::read_sysctls(const std::vector<std::string>& paths) const {
  std::vector<Result<std::string>> readings;
  readings.reserve(paths.size());
  const auto failure = netns_->run_inside([&] {
    for (const auto& path : paths) readings.push_back(read_sysctl(path));
  });
  if (failure) readings.assign(paths.size(), Result<std::string>(*failure));
  return readings;
}

}  // namespace podwire::netlink
