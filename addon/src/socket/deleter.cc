#include "socket/deleter.h"

#include <linux/rtnetlink.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "socket/socket.h"

namespace podwire::netlink {

namespace {

constexpr size_t kThreadsMax = 4;
// Two messages for each, and their answers, must fit the socket's buffers.
constexpr size_t kGroupLinksMax = 256;
constexpr uint32_t kSmallestGroup = 0x10000;
// Timeout of the acknowledgement, which has arrived when `sendmsg` returns.
constexpr Socket::Timeout kTimeout{5000};

using Deletions = std::vector<Deletion>;
using Results = std::vector<DeletionResult>;

std::optional<uint32_t> FreshGroup() {
  uint32_t group = 0;
  while (group < kSmallestGroup) {
    if (getrandom(&group, sizeof group, 0) != sizeof group) return std::nullopt;
  }
  return group;
}

Request SetGroup(uint32_t index, uint32_t group) {
  Link link;
  link.header.ifi_index = static_cast<int32_t>(index);
  link.group = group;
  Request request;
  request.type = RTM_SETLINK;
  request.object = std::move(link);
  return request;
}

Request DeleteGroup(uint32_t group) {
  Link link;
  link.group = group;
  Request request;
  request.type = RTM_DELLINK;
  request.object = std::move(link);
  return request;
}

std::optional<KernelError> DeleteOne(Socket& socket, uint32_t index, const std::string& name) {
  return socket.Exchange(DeleteLink(index, name), kTimeout).error;
}

// Each link's own outcome; the links must be veths.
std::map<uint32_t, std::optional<KernelError>> DeleteTogether(Socket& socket, const std::vector<uint32_t>& indexes) {
  std::map<uint32_t, std::optional<KernelError>> errors;
  const auto group = indexes.size() > 1 ? FreshGroup() : std::nullopt;
  bool deleted = false;
  if (group) {
    std::vector<Request> requests;
    requests.reserve(indexes.size() + 1);
    for (const uint32_t index : indexes) requests.push_back(SetGroup(index, *group));
    requests.push_back(DeleteGroup(*group));
    const auto replies = socket.Exchange(requests, kTimeout);
    for (size_t position = 0; position < indexes.size(); ++position) {
      errors[indexes[position]] = replies[position].error;
    }
    deleted = !replies.back().error;
  }
  if (deleted) return errors;
  for (const uint32_t index : indexes) errors[index] = DeleteOne(socket, index, "");
  return errors;
}

Results DeleteAll(Socket& socket, const Deletions& deletions) {
  Results results;
  if (deletions.size() == 1) {
    const auto& only = deletions.front();
    results.push_back({only.id, DeleteOne(socket, only.index, only.name)});
    return results;
  }
  std::vector<Request> questions;
  for (const auto& deletion : deletions) questions.push_back(GetLink(deletion.index, deletion.name));
  const auto links = socket.Exchange(questions, kTimeout);

  std::map<uint32_t, std::optional<KernelError>> errors;
  std::vector<uint32_t> veths;
  for (size_t position = 0; position < deletions.size(); ++position) {
    const auto& link = links[position].link;
    if (!link || errors.count(static_cast<uint32_t>(link->header.ifi_index)) > 0) continue;
    const auto index = static_cast<uint32_t>(link->header.ifi_index);
    errors[index] = std::nullopt;
    if (link->info && link->info->KindName() == "veth") {
      veths.push_back(index);
    } else {
      errors[index] = DeleteOne(socket, index, "");
    }
  }
  for (auto& [index, error] : DeleteTogether(socket, veths)) errors[index] = error;

  for (size_t position = 0; position < deletions.size(); ++position) {
    const auto& link = links[position].link;
    results.push_back(
        {deletions[position].id, link ? errors[static_cast<uint32_t>(link->header.ifi_index)] : links[position].error});
  }
  return results;
}

Results AllFailed(const Deletions& deletions, const KernelError& error) {
  Results results;
  for (const auto& deletion : deletions) results.push_back({deletion.id, error});
  return results;
}

}  // namespace

struct Deleter::Shared {
  Shared(std::shared_ptr<const Netns> where, UniqueFd readable) : netns(std::move(where)), event(std::move(readable)) {}

  const std::shared_ptr<const Netns> netns;
  const UniqueFd event;

  std::mutex mutex;
  std::condition_variable changed;
  // All below are guarded by `mutex`.
  Deletions waiting;
  Results results;
  size_t threads = 0;
  size_t idle = 0;
  bool ended = false;

  // Waits for work; empty when there will be none.
  Deletions Take() {
    std::unique_lock lock(mutex);
    ++idle;
    changed.wait(lock, [this] { return ended || !waiting.empty(); });
    --idle;
    return TakeWaiting();
  }

  Deletions TakeWaiting() {
    const size_t count = std::min(waiting.size(), kGroupLinksMax);
    const auto end = waiting.begin() + static_cast<Deletions::difference_type>(count);
    Deletions taken(std::make_move_iterator(waiting.begin()), std::make_move_iterator(end));
    waiting.erase(waiting.begin(), end);
    return taken;
  }

  void Report(Results more) {
    const std::lock_guard lock(mutex);
    results.insert(results.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    eventfd_write(event.Get(), 1);
  }

  // A thread could not be used; with the last one goes what waits.
  void GiveUp(const KernelError& error) {
    Deletions lost;
    {
      const std::lock_guard lock(mutex);
      if (--threads == 0) lost.swap(waiting);
    }
    if (!lost.empty()) Report(AllFailed(lost, error));
  }
};

Result<std::unique_ptr<Deleter>> Deleter::Open(std::shared_ptr<const Netns> netns) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return KernelError{errno, "cannot open an eventfd"};
  auto shared = std::make_shared<Shared>(std::move(netns), std::move(event));
  return std::unique_ptr<Deleter>(new Deleter(std::move(shared)));
}

Deleter::Deleter(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

Deleter::~Deleter() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->changed.notify_all();
}

int Deleter::EventFd() const { return shared_->event.Get(); }

void Deleter::Submit(std::vector<Deletion> deletions) {
  {
    const std::lock_guard lock(shared_->mutex);
    auto& waiting = shared_->waiting;
    waiting.insert(waiting.end(), std::make_move_iterator(deletions.begin()), std::make_move_iterator(deletions.end()));
    const bool enough = shared_->idle > 0 || shared_->threads == kThreadsMax;
    shared_->changed.notify_one();
    if (enough) return;
    ++shared_->threads;
  }
  try {
    std::thread(RunThread, shared_).detach();
  } catch (const std::system_error& error) {
    shared_->GiveUp({error.code().value(), "cannot start a thread"});
  }
}

std::vector<DeletionResult> Deleter::TakeResults() {
  eventfd_t count = 0;
  eventfd_read(shared_->event.Get(), &count);
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->results, {});
}

void Deleter::RunThread(const std::shared_ptr<Shared>& shared) {
  if (const auto failure = shared->netns->Enter()) return shared->GiveUp(*failure);
  auto socket = Socket::Open();
  if (!socket) return shared->GiveUp(socket.Error());
  for (auto deletions = shared->Take(); !deletions.empty(); deletions = shared->Take()) {
    shared->Report(DeleteAll(*socket, deletions));
  }
}

}  // namespace podwire::netlink
