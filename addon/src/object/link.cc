#include "object/link.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

// A veth's peer is decoded as a link without a peer; deeper nesting stays bytes, so that no input makes the decoder
// recurse.
enum class Peer { kDecode, kKeep };

std::optional<Link> Decode(ByteView payload, Peer peers);

std::optional<Attribute> Find(ByteView nest, uint16_t type) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == type) return attribute;
  }
  return std::nullopt;
}

std::string RawText(const Attribute& attribute) {
  return std::string(reinterpret_cast<const char*>(attribute.payload.data), attribute.payload.size);
}

bool DecodeData(const Attribute& attribute, LinkInfo& info, Peer peers) {
  const bool veth = peers == Peer::kDecode && info.KindName() == "veth";
  AttributeReader reader(attribute.payload);
  LinkInfo found;
  while (const auto inner = reader.Next()) {
    auto peer = veth && inner->raw_type == VETH_INFO_PEER && found.peer.empty() ? Decode(inner->payload, Peer::kKeep)
                                                                                : std::nullopt;
    if (peer) {
      found.peer.push_back(std::move(*peer));
    } else {
      found.data.push_back(Keep(*inner));
    }
  }
  if (reader.Malformed()) return false;
  info.peer = std::move(found.peer);
  info.data = std::move(found.data);
  return true;
}

std::optional<LinkInfo> DecodeInfo(const Attribute& attribute, Peer peers) {
  AttributeReader reader(attribute.payload);
  LinkInfo info;
  while (const auto inner = reader.Next()) {
    bool known = false;
    if (inner->type == IFLA_INFO_KIND) known = Assign(info.kind, std::optional(RawText(*inner)));
    if (inner->type == IFLA_INFO_DATA && inner->raw_type == inner->type) known = DecodeData(*inner, info, peers);
    if (!known) info.unknown_attributes.push_back(Keep(*inner));
  }
  if (reader.Malformed()) return std::nullopt;
  return info;
}

bool DecodeAttribute(const Attribute& attribute, Link& link, Peer peers) {
  if (attribute.raw_type != attribute.type) return false;
  const auto& [data, size] = attribute.payload;
  switch (attribute.type) {
    case IFLA_IFNAME:
      return Assign(link.name, attribute.Text());
    case IFLA_ADDRESS:
      return Assign(link.mac, std::optional(std::vector<uint8_t>(data, data + size)));
    case IFLA_MTU:
      return Assign(link.mtu, attribute.U32());
    case IFLA_IFALIAS:
      return Assign(link.alias, std::optional(RawText(attribute)));
    case IFLA_GROUP:
      return Assign(link.group, attribute.U32());
    case IFLA_TXQLEN:
      return Assign(link.tx_queue_length, attribute.U32());
    case IFLA_NUM_TX_QUEUES:
      return Assign(link.tx_queues, attribute.U32());
    case IFLA_NUM_RX_QUEUES:
      return Assign(link.rx_queues, attribute.U32());
    case IFLA_OPERSTATE:
      return Assign(link.oper_state, attribute.U8());
    case IFLA_LINK:
      return Assign(link.linked_index, attribute.U32());
    case IFLA_LINK_NETNSID:
      return Assign(link.linked_namespace, attribute.U32());
    case IFLA_MASTER:
      return Assign(link.master, attribute.U32());
    case IFLA_NET_NS_FD:
      return Assign(link.namespace_fd, attribute.U32());
    case IFLA_QDISC:
      return Assign(link.root_qdisc, attribute.Text());
    case IFLA_EXT_MASK:
      return Assign(link.extension_mask, attribute.U32());
    case IFLA_LINKINFO:
      return Assign(link.info, DecodeInfo(attribute, peers));
    default:
      return false;
  }
}

std::optional<Link> Decode(ByteView payload, Peer peers) {
  const auto header = TakeHeader<ifinfomsg>(payload);
  if (!header) return std::nullopt;
  Link link;
  link.family = header->ifi_family;
  link.hardware_type = header->ifi_type;
  link.index = header->ifi_index;
  link.flags = header->ifi_flags;
  link.change = header->ifi_change;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    if (!DecodeAttribute(*attribute, link, peers)) link.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return link;
}

void WriteRawText(MessageWriter& writer, uint16_t type, const std::string& text) {
  writer.Attribute(type, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

void EncodeInfo(const LinkInfo& info, MessageWriter& writer) {
  const size_t nest = writer.OpenNest(IFLA_LINKINFO);
  if (info.kind) WriteRawText(writer, IFLA_INFO_KIND, *info.kind);
  if (!info.peer.empty() || !info.data.empty()) {
    const size_t data = writer.OpenNest(IFLA_INFO_DATA);
    for (const auto& peer : info.peer) {
      const size_t position = writer.OpenNest(VETH_INFO_PEER);
      Encode(peer, writer);
      writer.CloseNest(position);
    }
    WriteAttributes(writer, info.data);
    writer.CloseNest(data);
  }
  WriteAttributes(writer, info.unknown_attributes);
  writer.CloseNest(nest);
}

void Put(MessageWriter& writer, uint16_t type, const std::optional<uint32_t>& value) {
  if (value) writer.U32(type, *value);
}

}  // namespace

std::string WithoutZero(const std::string& text) { return text.substr(0, text.find('\0')); }

std::string LinkInfo::KindName() const { return kind ? WithoutZero(*kind) : std::string(); }

std::optional<uint8_t> AddressGeneration(const Link& link) {
  for (const auto& other : link.unknown_attributes) {
    if (View(other).type != IFLA_AF_SPEC) continue;
    const auto inet6 = Find(View(other).payload, AF_INET6);
    const auto mode = inet6 ? Find(inet6->payload, IFLA_INET6_ADDR_GEN_MODE) : std::nullopt;
    if (mode) return mode->U8();
  }
  return std::nullopt;
}

void SetAddressGeneration(Link& link, uint8_t mode) {
  MessageWriter inner;
  inner.U8(IFLA_INET6_ADDR_GEN_MODE, mode);
  MessageWriter families;
  families.Attribute(AF_INET6, {inner.Bytes().data(), inner.Bytes().size()});
  link.unknown_attributes.push_back({IFLA_AF_SPEC, families.Bytes()});
}

std::optional<Link> DecodeLink(ByteView payload) { return Decode(payload, Peer::kDecode); }

void Encode(const Link& link, MessageWriter& writer) {
  ifinfomsg header{};
  header.ifi_family = link.family;
  header.ifi_type = link.hardware_type;
  header.ifi_index = link.index;
  header.ifi_flags = link.flags;
  header.ifi_change = link.change;
  writer.Header(header);
  if (link.mac) writer.Attribute(IFLA_ADDRESS, {link.mac->data(), link.mac->size()});
  Put(writer, IFLA_MTU, link.mtu);
  if (link.alias) WriteRawText(writer, IFLA_IFALIAS, *link.alias);
  Put(writer, IFLA_GROUP, link.group);
  Put(writer, IFLA_TXQLEN, link.tx_queue_length);
  Put(writer, IFLA_NUM_TX_QUEUES, link.tx_queues);
  Put(writer, IFLA_NUM_RX_QUEUES, link.rx_queues);
  if (link.oper_state) writer.U8(IFLA_OPERSTATE, *link.oper_state);
  Put(writer, IFLA_LINK, link.linked_index);
  Put(writer, IFLA_LINK_NETNSID, link.linked_namespace);
  Put(writer, IFLA_MASTER, link.master);
  Put(writer, IFLA_NET_NS_FD, link.namespace_fd);
  if (link.name) writer.Text(IFLA_IFNAME, *link.name);
  if (link.root_qdisc) writer.Text(IFLA_QDISC, *link.root_qdisc);
  Put(writer, IFLA_EXT_MASK, link.extension_mask);
  if (link.info) EncodeInfo(*link.info, writer);
  WriteAttributes(writer, link.unknown_attributes);
}

}  // namespace podwire::netlink
