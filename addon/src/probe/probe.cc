#include "probe/probe.h"

#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "socket/unique_fd.h"

namespace podwire::netlink {

namespace {

using Clock = std::chrono::steady_clock;

// Connections wait in the kernel's queue, as nothing accepts them.
constexpr int kBacklog = 4096;

// Type, code, checksum, identifier and sequence number, in ICMP and in ICMPv6.
constexpr size_t kEchoHeaderBytes = 8;
constexpr size_t kIdentifierOffset = 4;

constexpr size_t kBytesPerHeaderWord = 4;
constexpr uint8_t kHeaderWordsMask = 0x0f;
constexpr size_t kReceivedBytes = 128;
using Received = std::array<uint8_t, kReceivedBytes>;

uint16_t Checksum(const std::vector<uint8_t>& bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) sum += i % 2 == 0 ? uint32_t{bytes[i]} << 8 : bytes[i];
  while (sum >> 16) sum = (sum >> 16) + (sum & 0xffff);
  return htons(static_cast<uint16_t>(~sum));
}

class Attempt {
 public:
  Attempt(const Probe& probe, uint32_t identifier) : probe_(probe), v6_(probe.address.family == AF_INET6) {
    std::memcpy(identifier_.data(), &identifier, identifier_.size());
  }

  void Start() {
    start_ = Clock::now();
    const int protocol = !IsEcho() ? 0 : v6_ ? int{IPPROTO_ICMPV6} : int{IPPROTO_ICMP};
    const int type = IsEcho() ? SOCK_RAW : probe_.udp ? SOCK_DGRAM : SOCK_STREAM;
    fd_ = UniqueFd(::socket(probe_.address.family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol));
    if (!fd_ || !SetOptions() || !Connect() || !Send()) End(errno);
  }

  bool Pending() const { return !ended_; }
  pollfd Poll() const { return {fd_.Get(), static_cast<short>(IsTcp() ? POLLOUT : POLLIN), 0}; }

  void Read(short events) {
    if (events & POLLERR) ReadErrors();
    if (!ended_ && IsTcp() && (events & (POLLOUT | POLLHUP))) {
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(fd_.Get(), SOL_SOCKET, SO_ERROR, &error, &size);
      End(error);
    }
    if (probe_.udp && (events & POLLIN)) End(0);
    if (IsEcho() && (events & POLLIN)) ReadEchoes();
  }

  void End(int error) {
    if (ended_) return;
    ended_ = true;
    answer_.error = error;
    answer_.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }

  const ProbeAnswer& Answer() const { return answer_; }

 private:
  bool IsEcho() const { return probe_.port == 0; }
  bool IsTcp() const { return !IsEcho() && !probe_.udp; }

  bool Set(int option4, int option6, int value) {
    return setsockopt(fd_.Get(), v6_ ? int{IPPROTO_IPV6} : int{IPPROTO_IP}, v6_ ? option6 : option4, &value,
                      sizeof value) == 0;
  }

  bool SetOptions() {
    if (v6_ && IsEcho()) {
      icmp6_filter replies;
      ICMP6_FILTER_SETBLOCKALL(&replies);
      ICMP6_FILTER_SETPASS(ICMP6_ECHO_REPLY, &replies);
      if (setsockopt(fd_.Get(), IPPROTO_ICMPV6, ICMP6_FILTER, &replies, sizeof replies) != 0) return false;
    }
    return Set(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO) && Set(IP_RECVERR, IPV6_RECVERR, 1);
  }

  bool Connect() {
    sockaddr_in6 to6{};
    sockaddr_in to4{};
    to6.sin6_family = AF_INET6;
    to4.sin_family = AF_INET;
    to6.sin6_port = to4.sin_port = htons(probe_.port);
    std::memcpy(&to6.sin6_addr, probe_.address.bytes.data(), sizeof to6.sin6_addr);
    std::memcpy(&to4.sin_addr, probe_.address.bytes.data(), sizeof to4.sin_addr);
    const auto* to = v6_ ? reinterpret_cast<const sockaddr*>(&to6) : reinterpret_cast<const sockaddr*>(&to4);
    return connect(fd_.Get(), to, v6_ ? sizeof to6 : sizeof to4) == 0 || errno == EINPROGRESS;
  }

  bool Send() {
    if (IsTcp()) return true;
    std::vector<uint8_t> packet(kEchoHeaderBytes + probe_.payload_bytes);
    packet[0] = v6_ ? uint8_t{ICMP6_ECHO_REQUEST} : uint8_t{ICMP_ECHO};
    std::copy(identifier_.begin(), identifier_.end(), packet.begin() + kIdentifierOffset);
    // The kernel computes the checksum of ICMPv6.
    const uint16_t checksum = v6_ ? 0 : Checksum(packet);
    std::memcpy(&packet[2], &checksum, sizeof checksum);
    if (send(fd_.Get(), packet.data(), packet.size(), 0) >= 0) return true;
    const int error = errno;
    ReadErrors();
    errno = error;
    return ended_;
  }

  bool HasIdentifier(const uint8_t* message, size_t size) const {
    return size >= kEchoHeaderBytes && std::equal(identifier_.begin(), identifier_.end(), message + kIdentifierOffset);
  }

  void ReadEchoes() {
    Received bytes{};
    for (ssize_t size = 0; !ended_ && (size = recv(fd_.Get(), bytes.data(), bytes.size(), 0)) > 0;) {
      const size_t header = v6_ ? 0 : (bytes[0] & kHeaderWordsMask) * kBytesPerHeaderWord;
      const uint8_t type = header < bytes.size() ? bytes[header] : 0;
      const bool reply = v6_ ? type == ICMP6_ECHO_REPLY : type == ICMP_ECHOREPLY;
      const auto length = static_cast<size_t>(size);
      if (length > header && reply && HasIdentifier(&bytes[header], length - header)) End(0);
    }
  }

  // Errors that the kernel or another host reported. A raw socket also gets the errors of other echo requests.
  void ReadErrors() {
    Received bytes{};
    std::array<char, 512> control{};
    iovec data{bytes.data(), bytes.size()};
    while (!ended_) {
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t size = recvmsg(fd_.Get(), &message, MSG_ERRQUEUE);
      if (size < 0) break;
      for (auto* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        const bool of4 = part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR;
        const bool of6 = part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR;
        if (!of4 && !of6) continue;
        sock_extended_err error{};
        std::memcpy(&error, CMSG_DATA(part), sizeof error);
        const bool local = error.ee_origin == SO_EE_ORIGIN_LOCAL;
        if (!local && IsEcho() && !HasIdentifier(bytes.data(), static_cast<size_t>(size))) continue;
        if (!local) ReadReporter(CMSG_DATA(part) + sizeof error);
        if (error.ee_errno == EMSGSIZE) answer_.mtu_bytes = error.ee_info;
        End(static_cast<int>(error.ee_errno));
      }
    }
  }

  // Reads the address that SO_EE_OFFENDER points to.
  void ReadReporter(const uint8_t* offender) {
    sockaddr_in from4{};
    sockaddr_in6 from6{};
    std::memcpy(&from4, offender, sizeof from4);
    if (from4.sin_family == AF_INET) {
      answer_.reporter = IpAddress::Of({reinterpret_cast<const uint8_t*>(&from4.sin_addr), sizeof from4.sin_addr});
    } else if (from4.sin_family == AF_INET6) {
      std::memcpy(&from6, offender, sizeof from6);
      answer_.reporter = IpAddress::Of({reinterpret_cast<const uint8_t*>(&from6.sin6_addr), sizeof from6.sin6_addr});
    }
  }

  Probe probe_;
  bool v6_;
  // Identifier and sequence number.
  std::array<uint8_t, 4> identifier_{};
  UniqueFd fd_;
  Clock::time_point start_;
  ProbeAnswer answer_;
  bool ended_ = false;
};

std::vector<ProbeAnswer> RunInside(const std::vector<Probe>& probes, std::chrono::milliseconds timeout) {
  static std::atomic<uint32_t> identifiers{static_cast<uint32_t>(getpid()) << 16};
  std::vector<Attempt> attempts;
  attempts.reserve(probes.size());
  const auto deadline = Clock::now() + timeout;
  for (const auto& probe : probes) attempts.emplace_back(probe, identifiers++).Start();
  while (true) {
    std::vector<pollfd> polls;
    std::vector<Attempt*> pending;
    for (auto& attempt : attempts) {
      if (!attempt.Pending()) continue;
      pending.push_back(&attempt);
      polls.push_back(attempt.Poll());
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (pending.empty() || left <= 0) break;
    if (poll(polls.data(), polls.size(), static_cast<int>(left)) < 0 && errno != EINTR) break;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents) pending[i]->Read(polls[i].revents);
    }
  }
  std::vector<ProbeAnswer> answers;
  for (auto& attempt : attempts) {
    attempt.End(ETIMEDOUT);
    answers.push_back(attempt.Answer());
  }
  return answers;
}

Result<int> ListenInside(uint16_t port) {
  // Serves IPv4 too. It needs no IPv6 address, but a kernel with IPv6.
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool v6 = static_cast<bool>(fd);
  if (!v6) fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int no = 0;
  if (v6) setsockopt(fd.Get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_in6 any6{};
  sockaddr_in any4{};
  any6.sin6_family = AF_INET6;
  any4.sin_family = AF_INET;
  any6.sin6_port = any4.sin_port = htons(port);
  const auto* any = v6 ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any4);
  if (!fd || bind(fd.Get(), any, v6 ? sizeof any6 : sizeof any4) != 0 || listen(fd.Get(), kBacklog) != 0) {
    return KernelError{errno, ""};
  }
  return fd.Release();
}

}  // namespace

Result<std::vector<ProbeAnswer>> RunProbes(const Netns& netns, const std::vector<Probe>& probes,
                                           std::chrono::milliseconds timeout) {
  std::vector<ProbeAnswer> answers;
  if (auto failure = netns.RunInside([&] { answers = RunInside(probes, timeout); })) return *failure;
  return answers;
}

Result<int> ListenTcp(const Netns& netns, uint16_t port) {
  Result<int> listening = KernelError{EIO, ""};
  if (auto failure = netns.RunInside([&] { listening = ListenInside(port); })) return *failure;
  return listening;
}

Result<int> MakeNetns() {
  Result<int> made = KernelError{EIO, ""};
  try {
    std::thread([&] {
      const int fd = unshare(CLONE_NEWNET) == 0 ? open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC) : -1;
      if (fd < 0) {
        made = KernelError{errno, "cannot make a network namespace (CAP_SYS_ADMIN)"};
      } else {
        made = fd;
      }
    }).join();
  } catch (const std::system_error& error) {
    return KernelError{error.code().value(), "cannot start a thread"};
  }
  return made;
}

}  // namespace podwire::netlink
