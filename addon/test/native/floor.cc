// The kernel's part of one pod's network alone: the minimum for every implementation. Each iteration attaches
// a fresh network namespace and prints, over all, nanoseconds as JSON; creating namespaces and deleting links is not
// counted in `attachNs`.
//
// usage: floor [ITERATIONS]   in a network namespace of its own, as root
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "message/reader.h"
#include "message/writer.h"

namespace {

using podwire::netlink::ByteView;
using podwire::netlink::MessageReader;
using podwire::netlink::MessageWriter;
using Clock = std::chrono::steady_clock;

[[noreturn]] void Fail(const char* what, int number) {
  std::fprintf(stderr, "floor: %s: %s\n", what, std::strerror(number));
  std::exit(1);
}

int Check(int result, const char* what) {
  if (result < 0) Fail(what, errno);
  return result;
}

constexpr std::array<uint8_t, 6> kHostMac = {0xee, 0xee, 0xee, 0xee, 0xee, 0xee};
constexpr std::array<uint8_t, 6> kPodMac = {0x02, 0, 0, 0, 0, 0x01};
constexpr uint32_t kMtuBytes = 1450;
constexpr const char* kHostName = "podwfloor";
constexpr const char* kPodName = "eth0";

// Messages of one send, each acknowledged.
class Batch {
 public:
  template <typename Header, typename Attributes>
  void Add(uint16_t type, uint16_t flags, const Header& header, Attributes attributes) {
    writer_.Begin(type, static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags), count_++);
    writer_.Header(header);
    attributes(writer_);
    writer_.End();
  }

  void Run(int fd) const {
    const auto& bytes = writer_.Bytes();
    Check(static_cast<int>(send(fd, bytes.data(), bytes.size(), 0)), "send");
    std::array<uint8_t, 8192> buffer;
    for (uint32_t answered = 0; answered < count_;) {
      const int size = Check(static_cast<int>(recv(fd, buffer.data(), buffer.size(), 0)), "recv");
      MessageReader reader({buffer.data(), static_cast<size_t>(size)});
      while (const auto message = reader.Next()) {
        int error = 0;
        if (message->type != NLMSG_ERROR || message->payload.size < sizeof error) continue;
        std::memcpy(&error, message->payload.data, sizeof error);
        if (error != 0) Fail("the kernel refused a request", -error);
        ++answered;
      }
    }
  }

 private:
  MessageWriter writer_;
  uint32_t count_ = 0;
};

int OpenNetlink() { return Check(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), "netlink socket"); }

void WriteSysctl(const std::string& path, char value) {
  const int fd = Check(open(("/proc/sys/net/" + path).c_str(), O_WRONLY | O_CLOEXEC), path.c_str());
  Check(static_cast<int>(write(fd, &value, 1)), path.c_str());
  close(fd);
}

ByteView BytesOf(const in_addr& address) { return {reinterpret_cast<const uint8_t*>(&address), sizeof address}; }
template <size_t Size>
ByteView BytesOf(const std::array<uint8_t, Size>& bytes) {
  return {bytes.data(), bytes.size()};
}

in_addr Ipv4(const char* text) {
  in_addr address{};
  inet_pton(AF_INET, text, &address);
  return address;
}

const in_addr kPodAddress = Ipv4("10.65.0.2");
const in_addr kGateway = Ipv4("169.254.1.1");

rtmsg RouteHeader(uint8_t length, uint8_t scope) {
  rtmsg header{};
  header.rtm_family = AF_INET;
  header.rtm_dst_len = length;
  header.rtm_table = RT_TABLE_MAIN;
  header.rtm_protocol = RTPROT_STATIC;
  header.rtm_scope = scope;
  header.rtm_type = RTN_UNICAST;
  return header;
}

void MakePair(int host, int pod_namespace) {
  Batch batch;
  batch.Add(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, ifinfomsg{}, [&](MessageWriter& writer) {
    writer.Text(IFLA_IFNAME, kHostName);
    writer.Attribute(IFLA_ADDRESS, BytesOf(kHostMac));
    writer.U32(IFLA_MTU, kMtuBytes);
    const size_t info = writer.OpenNest(IFLA_LINKINFO);
    writer.Text(IFLA_INFO_KIND, "veth");
    const size_t data = writer.OpenNest(IFLA_INFO_DATA);
    const size_t peer = writer.OpenNest(VETH_INFO_PEER);
    writer.Header(ifinfomsg{});
    writer.Text(IFLA_IFNAME, kPodName);
    writer.Attribute(IFLA_ADDRESS, BytesOf(kPodMac));
    writer.U32(IFLA_MTU, kMtuBytes);
    writer.U32(IFLA_NET_NS_FD, static_cast<uint32_t>(pod_namespace));
    writer.CloseNest(peer);
    writer.CloseNest(data);
    writer.CloseNest(info);
  });
  ifinfomsg up{};
  up.ifi_flags = IFF_UP;
  up.ifi_change = IFF_UP;
  batch.Add(RTM_SETLINK, 0, up, [](MessageWriter& writer) { writer.Text(IFLA_IFNAME, kHostName); });
  batch.Run(host);
}

void WriteHostSysctls() {
  const std::string name = kHostName;
  WriteSysctl("ipv4/conf/" + name + "/rp_filter", '1');
  WriteSysctl("ipv6/conf/" + name + "/accept_ra", '0');
  WriteSysctl("ipv4/conf/" + name + "/route_localnet", '1');
  WriteSysctl("ipv4/neigh/" + name + "/proxy_delay", '0');
  WriteSysctl("ipv4/conf/" + name + "/proxy_arp", '1');
  WriteSysctl("ipv4/conf/" + name + "/forwarding", '1');
}

void AddPodRoute(Batch& batch, uint32_t index, const in_addr* destination, const in_addr* gateway) {
  const auto header = RouteHeader(destination ? 32 : 0, destination ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE);
  batch.Add(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, header, [&](MessageWriter& writer) {
    if (destination) writer.Attribute(RTA_DST, BytesOf(*destination));
    if (gateway) writer.Attribute(RTA_GATEWAY, BytesOf(*gateway));
    writer.U32(RTA_OIF, index);
  });
}

// The calling thread is in the pod's namespace.
void ConfigurePod(int pod) {
  const uint32_t index = if_nametoindex(kPodName);
  ifinfomsg up{};
  up.ifi_index = static_cast<int>(index);
  up.ifi_flags = IFF_UP;
  up.ifi_change = IFF_UP;
  ifaddrmsg address{};
  address.ifa_family = AF_INET;
  address.ifa_prefixlen = 32;
  address.ifa_index = index;
  Batch batch;
  batch.Add(RTM_SETLINK, 0, up, [](MessageWriter&) {});
  batch.Add(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, address, [](MessageWriter& writer) {
    writer.Attribute(IFA_LOCAL, BytesOf(kPodAddress));
    writer.Attribute(IFA_ADDRESS, BytesOf(kPodAddress));
  });
  AddPodRoute(batch, index, &kGateway, nullptr);
  AddPodRoute(batch, index, nullptr, &kGateway);
  batch.Run(pod);
  WriteSysctl("ipv4/ip_forward", '0');
}

void AddHostRoute(int host) {
  Batch batch;
  batch.Add(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, RouteHeader(32, RT_SCOPE_LINK), [](MessageWriter& writer) {
    writer.Attribute(RTA_DST, BytesOf(kPodAddress));
    writer.U32(RTA_OIF, if_nametoindex(kHostName));
  });
  batch.Run(host);
}

void DeletePair(int host) {
  Batch batch;
  batch.Add(RTM_DELLINK, 0, ifinfomsg{}, [](MessageWriter& writer) { writer.Text(IFLA_IFNAME, kHostName); });
  batch.Run(host);
}

int NewNamespace(int own) {
  Check(unshare(CLONE_NEWNET), "unshare");
  const int pod = Check(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC), "open namespace");
  Check(setns(own, CLONE_NEWNET), "setns");
  return pod;
}

int64_t NsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

void Print(const char* name, std::vector<int64_t> values, const char* end) {
  std::sort(values.begin(), values.end());
  std::printf("\"%s\": {\"p50\": %lld, \"p99\": %lld, \"max\": %lld}%s", name,
              static_cast<long long>(values[values.size() / 2]),
              static_cast<long long>(values[values.size() * 99 / 100]), static_cast<long long>(values.back()), end);
}

}  // namespace

int main(int argc, char** argv) {
  const int iterations = argc > 1 ? std::atoi(argv[1]) : 100;
  if (iterations < 1) {
    std::fprintf(stderr, "usage: floor [ITERATIONS], at least 1\n");
    return 2;
  }
  const int own = Check(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "open namespace");
  const int host = OpenNetlink();
  std::vector<int64_t> attach_ns;
  std::vector<int64_t> delete_ns;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const int pod_namespace = NewNamespace(own);
    const auto begun = Clock::now();
    MakePair(host, pod_namespace);
    WriteHostSysctls();
    Check(setns(pod_namespace, CLONE_NEWNET), "setns");
    const int pod = OpenNetlink();
    ConfigurePod(pod);
    Check(setns(own, CLONE_NEWNET), "setns");
    AddHostRoute(host);
    attach_ns.push_back(NsSince(begun));

    const auto deleting = Clock::now();
    DeletePair(host);
    delete_ns.push_back(NsSince(deleting));
    close(pod);
    close(pod_namespace);
  }
  std::printf("{\"iterations\": %d, ", iterations);
  Print("attachNs", attach_ns, ", ");
  Print("deleteAcknowledgedNs", delete_ns, "}\n");
  return 0;
}
