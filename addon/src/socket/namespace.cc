#include "socket/namespace.h"

#include <map>

#include "socket/sysctl.h"

namespace podwire::netlink {

KernelError not_looked_up(const KernelError& error, const std::string& name) {
  return {error.number, error.text.empty() ? "link " + name : error.text + " (link " + name + ")"};
}

Result<std::shared_ptr<Namespace>> Namespace::open(const std::optional<std::string>& path) {
  auto netns = Netns::open(path);
  if (!netns) return netns.error();
  return std::shared_ptr<Namespace>(new Namespace(std::make_shared<const Netns>(std::move(*netns))));
}

std::shared_ptr<Namespace> Namespace::open_at_once(const std::string& path) {
  auto netns = Netns::open_at_once(path);
  if (!netns) return nullptr;
  return std::shared_ptr<Namespace>(new Namespace(std::make_shared<const Netns>(std::move(*netns))));
}

bool Namespace::connected() {
  const std::lock_guard lock(mutex_);
  return socket_.has_value();
}

std::optional<KernelError> Namespace::connect() {
  if (socket_) return std::nullopt;
  std::optional<KernelError> failure;
  if (auto moved = netns_->run_inside([&] { failure = open_socket(); })) return moved;
  return failure;
}

std::optional<KernelError> Namespace::open_socket() {
  auto opened = Socket::open();
  if (!opened) return opened.error();
  socket_ = std::move(*opened);
  return std::nullopt;
}

std::optional<KernelError> Namespace::connect_from_inside() {
  const std::lock_guard lock(mutex_);
  return socket_ ? std::nullopt : open_socket();
}

std::vector<Reply> Namespace::exchange(std::vector<Request> requests, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  std::vector<Reply> replies(requests.size());
  if (const auto failure = connect()) {
    for (auto& reply : replies) reply.error = failure;
    return replies;
  }
  std::map<std::string, Result<uint32_t>> indexes;
  std::vector<Request> sent;
  std::vector<size_t> positions;
  for (size_t position = 0; position < requests.size(); ++position) {
    auto& request = requests[position];
    if (request.lookup) {
      auto found = indexes.find(*request.lookup);
      if (found == indexes.end()) {
        found = indexes.emplace(*request.lookup, socket_->look_up(*request.lookup, timeout)).first;
      }
      if (!found->second) {
        replies[position].error = not_looked_up(found->second.error(), *request.lookup);
        continue;
      }
      request.set_link_index(*found->second);
    }
    sent.push_back(std::move(request));
    positions.push_back(position);
  }
  auto answers = socket_->exchange(sent, timeout);
  for (size_t answer = 0; answer < answers.size(); ++answer) replies[positions[answer]] = std::move(answers[answer]);
  return replies;
}

std::optional<KernelError> Namespace::dump(const DumpRequest& request, const DumpSink& sink) {
  const std::lock_guard lock(mutex_);
  if (auto failure = connect()) return failure;
  auto failure = socket_->dump(request, sink);
  if (socket_->has_unread_list()) socket_.reset();
  return failure;
}

Result<uint32_t> Namespace::look_up(const std::string& name, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  if (const auto failure = connect()) return *failure;
  return socket_->look_up(name, timeout);
}

Reply Namespace::ask(const Request& request, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  if (auto failure = connect()) return {std::move(failure), std::nullopt};
  return socket_->exchange(request, timeout);
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
