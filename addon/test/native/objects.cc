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
Request request(uint16_t type, uint16_t flags, Object object) {
  Request made;
  made.type = type;
  made.flags = flags;
  made.object = std::move(object);
  return made;
}

}  // namespace

Request add_veth(const std::string& name, const std::string& peer, const std::shared_ptr<const Netns>& peer_namespace) {
  Link far;
  far.name = peer;
  far.namespace_fd = static_cast<uint32_t>(peer_namespace->fd());
  Link link;
  link.name = name;
  link.info = LinkInfo{"veth", {far}, {}, {}};
  auto made = request(RTM_NEWLINK, kCreate | NLM_F_ECHO, std::move(link));
  made.peer_namespace = peer_namespace;
  return made;
}

Request add_vxlan(const std::string& name, uint32_t vni) {
  Vxlan vxlan;
  vxlan.vni = vni;
  vxlan.port = uint16_t{4789};
  vxlan.local = IpAddress::parse("192.0.2.1");
  vxlan.learning = false;
  Link link;
  link.name = name;
  link.mac = kMac;
  link.info = LinkInfo{"vxlan", {}, encode_vxlan(vxlan), {}};
  return request(RTM_NEWLINK, kCreate, std::move(link));
}

Request set_up(uint32_t index) {
  Link link;
  link.index = static_cast<int32_t>(index);
  link.flags = IFF_UP;
  link.change = IFF_UP;
  return request(RTM_NEWLINK, 0, std::move(link));
}

Request add_address(uint32_t index, const std::string& text, uint8_t length) {
  Address address;
  address.local = address.address = IpAddress::parse(text);
  address.family = address.local->family;
  address.prefix_length = length;
  address.link_index = index;
  if (address.family == AF_INET6) address.header_flags = IFA_F_NODAD;
  return request(RTM_NEWADDR, kCreate, std::move(address));
}

Request add_route(const std::string& destination, uint8_t length) {
  Route route;
  route.destination = IpAddress::parse(destination);
  route.family = route.destination->family;
  route.destination_length = length;
  route.protocol = 80;
  route.type = RTN_BLACKHOLE;
  route.table = uint32_t{RT_TABLE_MAIN};
  return request(RTM_NEWROUTE, kCreate, std::move(route));
}

Request add_neighbour(uint32_t index, const std::string& address) {
  Neighbour neighbour;
  neighbour.destination = IpAddress::parse(address);
  neighbour.family = neighbour.destination->family;
  neighbour.link_index = static_cast<int32_t>(index);
  neighbour.state = NUD_PERMANENT;
  neighbour.mac = kMac;
  return request(RTM_NEWNEIGH, kCreate, std::move(neighbour));
}

Request append_fdb(uint32_t index, const std::string& destination) {
  Neighbour entry;
  entry.family = AF_BRIDGE;
  entry.destination = IpAddress::parse(destination);
  entry.link_index = static_cast<int32_t>(index);
  entry.state = NUD_NOARP | NUD_PERMANENT;
  entry.flags = NTF_SELF;
  entry.mac = kMac;
  return request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, std::move(entry));
}

std::shared_ptr<Namespace> make_namespace() {
  std::shared_ptr<Namespace> made;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    auto opened = Namespace::open("/proc/thread-self/ns/net");
    if (opened) made = *opened;
  }).join();
  if (made) return made;
  std::fprintf(stderr, "sockets: cannot make a network namespace: run it as root, or by test/support/isolated.mjs\n");
  std::exit(2);
}

}  // namespace podwire::netlink::test
