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
  link.index = static_cast<int32_t>(index);
  link.flags = IFF_UP;
  link.change = IFF_UP;
  return MakeRequest(RTM_NEWLINK, 0, std::move(link));
}

Request AddAddress(uint32_t index, const std::string& text, uint8_t length) {
  Address address;
  address.local = address.address = IpAddress::Parse(text);
  address.family = address.local->family;
  address.prefix_length = length;
  address.link_index = index;
  if (address.family == AF_INET6) address.header_flags = IFA_F_NODAD;
  return MakeRequest(RTM_NEWADDR, kCreate, std::move(address));
}

Request AddRoute(const std::string& destination, uint8_t length) {
  Route route;
  route.destination = IpAddress::Parse(destination);
  route.family = route.destination->family;
  route.destination_length = length;
  route.protocol = 80;
  route.type = RTN_BLACKHOLE;
  route.table = uint32_t{RT_TABLE_MAIN};
  return MakeRequest(RTM_NEWROUTE, kCreate, std::move(route));
}

Request AddNeighbour(uint32_t index, const std::string& address) {
  Neighbour neighbour;
  neighbour.destination = IpAddress::Parse(address);
  neighbour.family = neighbour.destination->family;
  neighbour.link_index = static_cast<int32_t>(index);
  neighbour.state = NUD_PERMANENT;
  neighbour.mac = kMac;
  return MakeRequest(RTM_NEWNEIGH, kCreate, std::move(neighbour));
}

Request AppendFdb(uint32_t index, const std::string& destination) {
  Neighbour entry;
  entry.family = AF_BRIDGE;
  entry.destination = IpAddress::Parse(destination);
  entry.link_index = static_cast<int32_t>(index);
  entry.state = NUD_NOARP | NUD_PERMANENT;
  entry.flags = NTF_SELF;
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
