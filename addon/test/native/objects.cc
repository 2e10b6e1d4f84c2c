#include "objects.h"

#include <linux/if.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "object/tunnel.h"

namespace podwire::netlink::test {

namespace {

constexpr uint16_t kCreate = NLM_F_CREATE | NLM_F_EXCL;
const std::vector<uint8_t> kMac = {0x02, 0, 0, 0, 0, 0x07};

template <typename Object>
Request MakeRequest(uint16_t type, uint16_t flags, Object object) {
  Request made;
  made.type = type;
  made.flags = flags;
  made.object = std::move(object);
  return made;
}

}  // namespace

Request AddVeth(const std::string& name, const std::string& peer, const std::shared_ptr<const Netns>& peer_namespace) {
  Link far;
  far.name = peer;
  far.namespace_fd = static_cast<uint32_t>(peer_namespace->Fd());
  Link link;
  link.name = name;
  link.info = LinkInfo{"veth", {far}, {}, {}};
  auto made = MakeRequest(RTM_NEWLINK, kCreate | NLM_F_ECHO, std::move(link));
  made.peer_namespace = peer_namespace;
  return made;
}

Request AddVxlan(const std::string& name, uint32_t vni) {
  Vxlan vxlan;
  vxlan.vni = vni;
  vxlan.port = uint16_t{4789};
  vxlan.local = IpAddress::Parse("192.0.2.1");
  vxlan.learning = false;
  Link link;
  link.name = name;
  link.mac = kMac;
  link.info = LinkInfo{"vxlan", {}, EncodeVxlan(vxlan), {}};
  return MakeRequest(RTM_NEWLINK, kCreate, std::move(link));
}

Request SetUp(uint32_t index) {
  Link link;
  link.header.ifi_index = static_cast<int32_t>(index);
  link.header.ifi_flags = IFF_UP;
  link.header.ifi_change = IFF_UP;
  return MakeRequest(RTM_NEWLINK, 0, std::move(link));
}

Request AddAddress(uint32_t index, const std::string& text, uint8_t length) {
  Address address;
  address.local = address.address = IpAddress::Parse(text);
  address.header.ifa_family = address.local->family;
  address.header.ifa_prefixlen = length;
  address.header.ifa_index = index;
  if (address.header.ifa_family == AF_INET6) address.header.ifa_flags = IFA_F_NODAD;
  return MakeRequest(RTM_NEWADDR, kCreate, std::move(address));
}

Request AddRoute(const std::string& destination, uint8_t length) {
  Route route;
  route.destination = IpAddress::Parse(destination);
  route.header.rtm_family = route.destination->family;
  route.header.rtm_dst_len = length;
  route.header.rtm_protocol = 80;
  route.header.rtm_type = RTN_BLACKHOLE;
  route.table = uint32_t{RT_TABLE_MAIN};
  return MakeRequest(RTM_NEWROUTE, kCreate, std::move(route));
}

Request AddNeighbour(uint32_t index, const std::string& address) {
  Neighbour neighbour;
  neighbour.destination = IpAddress::Parse(address);
  neighbour.header.ndm_family = neighbour.destination->family;
  neighbour.header.ndm_ifindex = static_cast<int32_t>(index);
  neighbour.header.ndm_state = NUD_PERMANENT;
  neighbour.mac = kMac;
  return MakeRequest(RTM_NEWNEIGH, kCreate, std::move(neighbour));
}

Request AppendFdb(uint32_t index, const std::string& destination) {
  Neighbour entry;
  entry.header.ndm_family = AF_BRIDGE;
  entry.destination = IpAddress::Parse(destination);
  entry.header.ndm_ifindex = static_cast<int32_t>(index);
  entry.header.ndm_state = NUD_NOARP | NUD_PERMANENT;
  entry.header.ndm_flags = NTF_SELF;
  entry.mac = kMac;
  return MakeRequest(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, std::move(entry));
}

std::shared_ptr<Namespace> MakeNamespace() {
  std::shared_ptr<Namespace> made;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    auto opened = Namespace::Open("/proc/thread-self/ns/net");
    if (opened) made = *opened;
  }).join();
  if (made) return made;
  std::fprintf(stderr, "sockets: cannot make a network namespace: run it as root, or by test/support/isolated.mjs\n");
  std::exit(2);
}

}  // namespace podwire::netlink::test
