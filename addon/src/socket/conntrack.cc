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

constexpr uint16_t type_of(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_CTNETLINK << 8 | message); }

/** The entries with the address in one place. */
Result<std::vector<Request>> find_entries(Socket& socket, const ConntrackFilter& filter) {
  std::vector<Request> deletions;
  bool malformed = false;
  DumpSink sink;
  sink.restart = [&] { deletions.clear(); };
  sink.take = [&](const Message& message) {
    auto entry = decode_conntrack(message.payload);
    malformed = malformed || !entry;
    if (!entry || !concerns(*entry, filter.address)) return;
    Request request;
    request.type = type_of(IPCTNL_MSG_CT_DELETE);
    request.object = std::move(*entry);
    deletions.push_back(std::move(request));
  };
  if (const auto failure = socket.dump({type_of(IPCTNL_MSG_CT_GET), filter}, sink)) return *failure;
  if (malformed) return KernelError{EBADMSG, "malformed list"};
  return deletions;
}

Result<uint32_t> delete_entries(Socket& socket, const IpAddress& address) {
  uint32_t deleted = 0;
  for (const auto place : kPlaces) {
    auto deletions = find_entries(socket, {address, place});
    if (!deletions) return deletions.error();
    for (const auto& reply : socket.exchange(*deletions, kTimeout)) {
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

Result<uint32_t> delete_conntrack(const Netns& netns, const IpAddress& address) {
  std::optional<Result<Socket>> socket;
  if (auto failure = netns.run_inside([&] { socket = Socket::open(NETLINK_NETFILTER); })) return *failure;
  if (!*socket) return socket->error();
  return delete_entries(**socket, address);
}

}  // namespace podwire::netlink
