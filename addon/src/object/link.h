#pragma once

#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/object_codec.h"

namespace podwire::netlink {

struct Link;

// Up to the zero byte that the kernel puts behind aliases and kinds, and iproute2 does not.
std::string WithoutZero(const std::string& text);

// IFLA_LINKINFO.
struct LinkInfo {
  // As it was sent, perhaps with a zero byte at its end.
  std::optional<std::string> kind;
  // VETH_INFO_PEER of a veth; none or one.
  std::vector<Link> peer;
  // Remaining attributes of IFLA_INFO_DATA.
  std::vector<OtherAttribute> data;
  std::vector<OtherAttribute> unknown_attributes;

  // Without a zero byte; empty when there is no kind.
  std::string KindName() const;
};

// RTM_NEWLINK and its kin.
struct Link {
  ifinfomsg header{};
  std::optional<std::string> name;
  std::optional<std::vector<uint8_t>> mac;
  std::optional<uint32_t> mtu;
  // As it was sent, perhaps with a zero byte at its end; to be set without one. Empty takes the alias away.
  std::optional<std::string> alias;
  std::optional<uint32_t> group;
  // Packets that may wait to be sent; 0 is the kernel's own choice.
  std::optional<uint32_t> tx_queue_length;
  std::optional<uint32_t> tx_queues;
  std::optional<uint32_t> rx_queues;
  std::optional<uint32_t> linked_index;
  // IFLA_LINK_NETNSID, signed.
  std::optional<uint32_t> linked_namespace;
  std::optional<uint32_t> namespace_fd;
  // Kind of the root qdisc.
  std::optional<std::string> root_qdisc;
  // IFLA_EXT_MASK of a request: which costly parts (RTEXT_FILTER_*) the answer is to have or lack.
  std::optional<uint32_t> extension_mask;
  std::optional<LinkInfo> info;
  std::vector<OtherAttribute> unknown_attributes;

  // All but `info`.
  template <typename Self, typename Field>
  static void Fields(Self& link, Field& field) {
    field(IFLA_ADDRESS, link.mac);
    field(IFLA_MTU, link.mtu);
    field.Raw(IFLA_IFALIAS, link.alias);
    field(IFLA_GROUP, link.group);
    field(IFLA_TXQLEN, link.tx_queue_length);
    field(IFLA_NUM_TX_QUEUES, link.tx_queues);
    field(IFLA_NUM_RX_QUEUES, link.rx_queues);
    field(IFLA_LINK, link.linked_index);
    field(IFLA_LINK_NETNSID, link.linked_namespace);
    field(IFLA_NET_NS_FD, link.namespace_fd);
    field(IFLA_IFNAME, link.name);
    field(IFLA_QDISC, link.root_qdisc);
    field(IFLA_EXT_MASK, link.extension_mask);
  }
};

// IN6_ADDR_GEN_MODE_*: how the link's own IPv6 addresses come about; nothing when the message does not say.
std::optional<uint8_t> AddressGeneration(const Link& link);
void SetAddressGeneration(Link& link, uint8_t mode);

// Nothing when the payload is malformed.
std::optional<Link> DecodeLink(ByteView payload);
void Encode(const Link& link, MessageWriter& writer);

}  // namespace podwire::netlink
