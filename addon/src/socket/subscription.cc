#include "socket/subscription.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "object/acknowledgement.h"
#include "socket/socket.h"

namespace podwire::netlink {

namespace {

// The kernel's limit for one notification of a link with everything in it is below this.
constexpr size_t kReceiveBufferBytes = 64 * 1024;
constexpr int kSocketBufferBytes = 8 * 1024 * 1024;
// So that a storm of notifications does not keep the event loop from its other work.
constexpr int kDatagramsPerRead = 64;

bool FilterType(int fd, uint16_t type) {
  // The filter's load turns two bytes into host order, and netlink's are in host order already.
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(nlmsghdr, nlmsg_type)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htons(type), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog program{static_cast<uint16_t>(sizeof code / sizeof code[0]), code};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

// Sends a request. The kernel answers it before `send` returns, and may notify of something before that.
std::optional<KernelError> Ask(int fd, const std::vector<uint8_t>& request) {
  if (send(fd, request.data(), request.size(), 0) < 0) return KernelError{errno, "cannot send a request"};
  std::vector<uint8_t> buffer(kReceiveBufferBytes);
  while (true) {
    const ssize_t size = recv(fd, buffer.data(), buffer.size(), 0);
    if (size < 0 && errno != EINTR && errno != ENOBUFS) return KernelError{errno, "cannot receive an answer"};
    MessageReader reader({buffer.data(), size < 0 ? 0 : static_cast<size_t>(size)});
    while (const auto message = reader.Next()) {
      if (message->type == NLMSG_ERROR) return Refusal(DecodeAcknowledgement(*message));
    }
  }
}

bool IsDrained(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 0;
}

}  // namespace

Result<Subscription> Subscription::Open(const SubscriptionOptions& options) {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, options.protocol));
  if (!fd) return KernelError{errno, "cannot open a netlink socket"};
  setsockopt(fd.Get(), SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  if (options.only_type && !FilterType(fd.Get(), *options.only_type)) {
    return KernelError{errno, "cannot filter notifications"};
  }
  // Without its own address the socket looks like the kernel, which does not notify itself.
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  if (bind(fd.Get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return KernelError{errno, "cannot bind a netlink socket"};
  }
  for (const uint32_t group : options.groups) {
    if (setsockopt(fd.Get(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) != 0) {
      return KernelError{errno, "cannot subscribe to notifications"};
    }
  }
  if (!options.request.empty()) {
    if (auto refusal = Ask(fd.Get(), options.request)) return *refusal;
  }
  return Subscription(std::move(fd));
}

Result<bool> Subscription::Read(const std::function<void(const Message&)>& take) {
  buffer_.resize(kReceiveBufferBytes);
  drained_ = false;
  for (int count = 0; count < kDatagramsPerRead && !drained_; ++count) {
    const ssize_t size = recv(fd_.Get(), buffer_.data(), buffer_.size(), MSG_TRUNC);
    if (size < 0 && errno == EAGAIN) {
      drained_ = true;
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != ENOBUFS) return KernelError{errno, "cannot receive notifications"};
    // A datagram that does not fit is lost like one that the kernel dropped.
    if (size < 0 || static_cast<size_t>(size) > buffer_.size()) {
      overrun_ = true;
      continue;
    }
    MessageReader reader({buffer_.data(), static_cast<size_t>(size)});
    while (const auto message = reader.Next()) take(*message);
    overrun_ = overrun_ || reader.Malformed();
  }
  if (!overrun_ || !IsDrained(fd_.Get())) return false;
  overrun_ = false;
  return true;
}

}  // namespace podwire::netlink
