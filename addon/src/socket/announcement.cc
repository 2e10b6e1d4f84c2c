#include "socket/announcement.h"

#include <arpa/inet.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "socket/unique_fd.h"

namespace podwire::netlink {

namespace {

using Mac = std::array<uint8_t, ETH_ALEN>;

// RFC 826, with Ethernet and IPv4.
struct ArpPacket {
  uint16_t hardware = htons(ARPHRD_ETHER);
  uint16_t protocol = htons(ETH_P_IP);
  uint8_t hardware_size = ETH_ALEN;
  uint8_t protocol_size = sizeof(in_addr);
  uint16_t operation = htons(ARPOP_REQUEST);
  Mac sender_mac{};
  std::array<uint8_t, sizeof(in_addr)> sender{};
  Mac target_mac{};
  std::array<uint8_t, sizeof(in_addr)> target{};
};
static_assert(sizeof(ArpPacket) == 28);

// RFC 4861, 4.4 and 4.6.1, with Ethernet.
struct Advertisement {
  nd_neighbor_advert head{};
  nd_opt_hdr option{ND_OPT_TARGET_LINKADDR, 1};
  Mac mac{};
};
static_assert(sizeof(Advertisement) == 32);

// Neighbours take no message that may have crossed a router.
constexpr int kHopLimit = 255;

constexpr in6_addr kAllNodes = {{{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}};

KernelError Failed(const char* text = "") { return {errno, text}; }

template <typename Packet, typename Place>
std::optional<KernelError> SendTo(int fd, const Packet& packet, const Place& place) {
  const auto* to = reinterpret_cast<const sockaddr*>(&place);
  if (sendto(fd, &packet, sizeof packet, MSG_DONTWAIT, to, sizeof place) == sizeof packet) return std::nullopt;
  return Failed();
}

template <typename Value>
bool Set(int fd, int option, const Value& value) {
  return setsockopt(fd, IPPROTO_IPV6, option, &value, sizeof value) == 0;
}

// A socket that sends by the link, and receives nothing, and where it is bound: with the link's own MAC address.
Result<sockaddr_ll> BindTo(const UniqueFd& socket, uint32_t link_index) {
  if (!socket) return Failed("cannot open a packet socket (CAP_NET_RAW)");
  sockaddr_ll place{};
  place.sll_family = AF_PACKET;
  place.sll_ifindex = static_cast<int>(link_index);
  socklen_t size = sizeof place;
  auto* where = reinterpret_cast<sockaddr*>(&place);
  if (bind(socket.Get(), where, size) != 0 || getsockname(socket.Get(), where, &size) != 0) return Failed();
  if (place.sll_hatype != ARPHRD_ETHER || place.sll_halen != ETH_ALEN) return KernelError{EOPNOTSUPP, "no Ethernet"};
  return place;
}

// A gratuitous ARP request: source and target are the address itself. Neighbours update their entry; there is no
// answer.
std::optional<KernelError> AnnounceIpv4(const UniqueFd& socket, sockaddr_ll place, const IpAddress& address) {
  ArpPacket packet;
  std::copy_n(place.sll_addr, ETH_ALEN, packet.sender_mac.begin());
  std::copy_n(address.bytes.begin(), packet.sender.size(), packet.sender.begin());
  packet.target = packet.sender;
  place.sll_protocol = htons(ETH_P_ARP);
  std::fill_n(place.sll_addr, ETH_ALEN, uint8_t{0xff});
  return SendTo(socket.Get(), packet, place);
}

// An unsolicited advertisement, to all nodes of the link. The kernel computes its checksum.
std::optional<KernelError> AnnounceIpv6(const sockaddr_ll& place, const Announcement& announcement) {
  const UniqueFd socket(::socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6));
  if (!socket) return Failed("cannot open a raw socket (CAP_NET_RAW)");
  icmp6_filter nothing;
  ICMP6_FILTER_SETBLOCKALL(&nothing);
  if (setsockopt(socket.Get(), IPPROTO_ICMPV6, ICMP6_FILTER, &nothing, sizeof nothing) != 0) return Failed();
  if (!Set(socket.Get(), IPV6_MULTICAST_HOPS, kHopLimit) || !Set(socket.Get(), IPV6_MULTICAST_LOOP, 0) ||
      !Set(socket.Get(), IPV6_MULTICAST_IF, place.sll_ifindex)) {
    return Failed();
  }
  sockaddr_in6 end{};
  end.sin6_family = AF_INET6;
  end.sin6_scope_id = announcement.link_index;
  std::copy_n(announcement.address.bytes.begin(), sizeof end.sin6_addr, end.sin6_addr.s6_addr);
  if (bind(socket.Get(), reinterpret_cast<const sockaddr*>(&end), sizeof end) != 0) return Failed();
  Advertisement packet;
  packet.head.nd_na_type = ND_NEIGHBOR_ADVERT;
  packet.head.nd_na_flags_reserved = ND_NA_FLAG_OVERRIDE | (announcement.router ? ND_NA_FLAG_ROUTER : 0);
  packet.head.nd_na_target = end.sin6_addr;
  std::copy_n(place.sll_addr, ETH_ALEN, packet.mac.begin());
  end.sin6_addr = kAllNodes;
  return SendTo(socket.Get(), packet, end);
}

std::optional<KernelError> AnnounceInside(const Announcement& announcement) {
  const UniqueFd socket(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto place = BindTo(socket, announcement.link_index);
  if (!place) return place.Error();
  if (announcement.address.family == AF_INET) return AnnounceIpv4(socket, *place, announcement.address);
  return AnnounceIpv6(*place, announcement);
}

}  // namespace

std::optional<KernelError> AnnounceAddress(const Netns& netns, const Announcement& announcement) {
  std::optional<KernelError> failure;
  if (auto moved = netns.RunInside([&] { failure = AnnounceInside(announcement); })) return moved;
  return failure;
}

}  // namespace podwire::netlink
