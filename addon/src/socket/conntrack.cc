// The part of Netfilter that is about connection tracking.
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>

#include <cerrno>

#include "socket/netfilter.h"

namespace podwire::netlink {

namespace {

constexpr Socket::Timeout kTimeout{5000};

constexpr uint16_t TypeOf(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_CTNETLINK << 8 | message); }

}  // namespace

std::optional<KernelError> Netfilter::Collect(const ConntrackFilter& filter,
                                              const std::function<bool(const ConntrackEntry&)>& matches,
                                              std::vector<ConntrackEntry>& entries) {
  if (auto failure = Connect()) return failure;
  const size_t before = entries.size();
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { entries.resize(before); };
  sink.take = [&](const Message& message) {
    auto entry = DecodeConntrack(message.payload);
    malformed = malformed || !entry;
    if (entry && matches(*entry)) entries.push_back(std::move(*entry));
  };
  auto failure = socket_->Dump({TypeOf(IPCTNL_MSG_CT_GET), filter}, sink);
  if (socket_->HasUnreadList()) socket_.reset();
  if (failure) return failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return std::nullopt;
}

Result<uint32_t> Netfilter::DeleteConntrack(const ConntrackFilter& filter) {
  std::vector<ConntrackEntry> entries;
  for (const auto& part : ByPlace(filter)) {
    const auto matches = [&](const ConntrackEntry& entry) { return Matches(entry, part); };
    if (const auto failure = Collect(part, matches, entries)) return *failure;
  }
  return DeleteConntrack(std::move(entries));
}

Result<std::vector<ConntrackEntry>> Netfilter::ListConntrack(const ConntrackEnds& ends) {
  std::vector<ConntrackEntry> entries;
  for (const auto& list : ends.Lists()) {
    const auto matches = [&](const ConntrackEntry& entry) { return ends.Matches(entry, list); };
    if (const auto failure = Collect(list, matches, entries)) return *failure;
  }
  return entries;
}

Result<uint32_t> Netfilter::DeleteConntrack(std::vector<ConntrackEntry> entries) {
  if (auto failure = Connect()) return *failure;
  std::vector<Request> requests(entries.size());
  for (size_t position = 0; position < requests.size(); ++position) {
    requests[position].type = TypeOf(IPCTNL_MSG_CT_DELETE);
    requests[position].object = std::move(entries[position]);
  }
  uint32_t deleted = 0;
  for (const auto& reply : socket_->Exchange(requests, kTimeout)) {
    // An entry that expired meanwhile does not count as deleted, and is no failure.
    if (reply.error && reply.error->number != ENOENT) return *reply.error;
    deleted += reply.error ? 0 : 1;
  }
  return deleted;
}

}  // namespace podwire::netlink
