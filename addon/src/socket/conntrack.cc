#include "socket/conntrack.h"

#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <cerrno>

namespace podwire::netlink {

namespace {

constexpr Socket::Timeout kTimeout{5000};
constexpr ConntrackFilter::Place kPlaces[] = {
    ConntrackFilter::Place::kOriginalSource,
    ConntrackFilter::Place::kOriginalDestination,
    ConntrackFilter::Place::kReplySource,
};

constexpr uint16_t TypeOf(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_CTNETLINK << 8 | message); }

// The entries with the address in one place.
Result<std::vector<Request>> FindEntries(Socket& socket, const ConntrackFilter& filter) {
  std::vector<Request> deletions;
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { deletions.clear(); };
  sink.take = [&](const Message& message) {
    auto entry = DecodeConntrack(message.payload);
    malformed = malformed || !entry;
    if (!entry || !Concerns(*entry, filter.address)) return;
    Request request;
    request.type = TypeOf(IPCTNL_MSG_CT_DELETE);
    request.object = std::move(*entry);
    deletions.push_back(std::move(request));
  };
  if (const auto failure = socket.Dump({TypeOf(IPCTNL_MSG_CT_GET), filter}, sink)) return *failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return deletions;
}

Result<uint32_t> DeleteEntries(Socket& socket, const IpAddress& address) {
  uint32_t deleted = 0;
  for (const auto place : kPlaces) {
    auto deletions = FindEntries(socket, {address, place});
    if (!deletions) return deletions.Error();
    for (const auto& reply : socket.Exchange(*deletions, kTimeout)) {
      // An entry that expired meanwhile does not count as deleted, and is no failure.
      if (reply.error && reply.error->number != ENOENT) return *reply.error;
      deleted += reply.error ? 0 : 1;
    }
    // All of them were listed, as the kernel compares IPv4 addresses alone.
    if (address.family == AF_INET6) break;
  }
  return deleted;
}

}  // namespace

Result<uint32_t> DeleteConntrack(const Netns& netns, const IpAddress& address) {
  std::optional<Result<Socket>> socket;
  if (auto failure = netns.RunInside([&] { socket = Socket::Open(NETLINK_NETFILTER); })) return *failure;
  if (!*socket) return socket->Error();
  return DeleteEntries(**socket, address);
}

}  // namespace podwire::netlink
