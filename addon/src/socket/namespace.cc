#include "socket/namespace.h"

#include <map>

#include "socket/sysctl.h"

namespace podwire::netlink {

KernelError NotLookedUp(const KernelError& error, const std::string& name) {
  return {error.number, error.text.empty() ? "link " + name : error.text + " (link " + name + ")"};
}

Result<std::shared_ptr<Namespace>> Namespace::Open(const std::optional<std::string>& path) {
  auto netns = Netns::Open(path);
  if (!netns) return netns.Error();
  return std::shared_ptr<Namespace>(new Namespace(std::make_shared<const Netns>(std::move(*netns))));
}

std::shared_ptr<Namespace> Namespace::OpenAtOnce(const std::string& path) {
  auto netns = Netns::OpenAtOnce(path);
  if (!netns) return nullptr;
  return std::shared_ptr<Namespace>(new Namespace(std::make_shared<const Netns>(std::move(*netns))));
}

bool Namespace::Connected() {
  const std::lock_guard lock(mutex_);
  return socket_.has_value();
}

std::optional<KernelError> Namespace::Connect() {
  if (socket_) return std::nullopt;
  std::optional<KernelError> failure;
  if (auto moved = netns_->RunInside([&] { failure = OpenSocket(); })) return moved;
  return failure;
}

std::optional<KernelError> Namespace::OpenSocket() {
  auto opened = Socket::Open();
  if (!opened) return opened.Error();
  socket_ = std::move(*opened);
  return std::nullopt;
}

std::optional<KernelError> Namespace::ConnectFromInside() {
  const std::lock_guard lock(mutex_);
  return socket_ ? std::nullopt : OpenSocket();
}

std::vector<Reply> Namespace::Exchange(std::vector<Request> requests, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  std::vector<Reply> replies(requests.size());
  if (const auto failure = Connect()) {
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
        found = indexes.emplace(*request.lookup, socket_->LookUp(*request.lookup, timeout)).first;
      }
      if (!found->second) {
        replies[position].error = NotLookedUp(found->second.Error(), *request.lookup);
        continue;
      }
      request.SetLinkIndex(*found->second);
    }
    sent.push_back(std::move(request));
    positions.push_back(position);
  }
  auto answers = socket_->Exchange(sent, timeout);
  for (size_t answer = 0; answer < answers.size(); ++answer) replies[positions[answer]] = std::move(answers[answer]);
  return replies;
}

std::optional<KernelError> Namespace::Dump(const DumpRequest& request, const DumpSink& sink) {
  const std::lock_guard lock(mutex_);
  if (auto failure = Connect()) return failure;
  auto failure = socket_->Dump(request, sink);
  if (socket_->HasUnreadList()) socket_.reset();
  return failure;
}

Result<uint32_t> Namespace::LookUp(const std::string& name, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  if (const auto failure = Connect()) return *failure;
  return socket_->LookUp(name, timeout);
}

Reply Namespace::Ask(const Request& request, Socket::Timeout timeout) {
  const std::lock_guard lock(mutex_);
  if (auto failure = Connect()) return {std::move(failure), std::nullopt};
  return socket_->Exchange(request, timeout);
}

std::vector<Result<std::string>> Namespace::ReadSysctls(const std::vector<std::string>& paths) const {
  std::vector<Result<std::string>> readings;
  readings.reserve(paths.size());
  const auto failure = netns_->RunInside([&] {
    for (const auto& path : paths) readings.push_back(ReadSysctl(path));
  });
  if (failure) readings.assign(paths.size(), Result<std::string>(*failure));
  return readings;
}

}  // namespace podwire::netlink
