#include "object/link.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

/** A veth's peer is decoded as a link without a peer; deeper nesting stays bytes, so that no input makes the decoder recurse. */
enum class Peer { kDecode, kKeep };

std::optional<Link> decode(ByteView payload, Peer peers);

std::optional<Attribute> find(ByteView nest, uint16_t type) {
  AttributeReader reader(nest);
  while (const auto attribute = reader.next()) {
    if (attribute->type == type) return attribute;
  }
  return std::nullopt;
}

std::string raw_text(const Attribute& attribute) {
  return std::string(reinterpret_cast<const char*>(attribute.payload.data), attribute.payload.size);
}

bool decode_data(const Attribute& attribute, LinkInfo& info, Peer peers) {
  const bool veth = peers == Peer::kDecode && info.kind_name() == "veth";
  AttributeReader reader(attribute.payload);
  LinkInfo found;
  while (const auto inner = reader.next()) {
    auto peer = veth && inner->raw_type == VETH_INFO_PEER && found.peer.empty() ? decode(inner->payload, Peer::kKeep)
                                                                               : std::nullopt;
    if (peer) {
      found.peer.push_back(std::move(*peer));
    } else {
      found.data.push_back(keep(*inner));
    }
  }
  if (reader.malformed()) return false;
  info.peer = std::move(found.peer);
  info.data = std::move(found.data);
  return true;
}

std::optional<LinkInfo> decode_info(const Attribute& attribute, Peer peers) {
  AttributeReader reader(attribute.payload);
  LinkInfo info;
  while (const auto inner = reader.next()) {
    bool known = false;
    if (inner->type == IFLA_INFO_KIND) known = assign(info.kind, std::optional(raw_text(*inner)));
    if (inner->type == IFLA_INFO_DATA && inner->raw_type == inner->type) known = decode_data(*inner, info, peers);
    if (!known) info.others.push_back(keep(*inner));
  }
  if (reader.malformed()) return std::nullopt;
  return info;
}

bool decode_attribute(const Attribute& attribute, Link& link, Peer peers) {
  if (attribute.raw_type != attribute.type) return false;
  const auto& [data, size] = attribute.payload;
  switch (attribute.type) {
    case IFLA_IFNAME:
      return assign(link.name, attribute.text());
    case IFLA_ADDRESS:
      return assign(link.mac, std::optional(std::vector<uint8_t>(data, data + size)));
    case IFLA_MTU:
      return assign(link.mtu, attribute.u32());
    case IFLA_IFALIAS:
      return assign(link.alias, std::optional(raw_text(attribute)));
    case IFLA_GROUP:
      return assign(link.group, attribute.u32());
    case IFLA_TXQLEN:
      return assign(link.tx_queue_length, attribute.u32());
    case IFLA_NUM_TX_QUEUES:
      return assign(link.tx_queues, attribute.u32());
    case IFLA_NUM_RX_QUEUES:
      return assign(link.rx_queues, attribute.u32());
    case IFLA_OPERSTATE:
      return assign(link.oper_state, attribute.u8());
    case IFLA_LINK:
      return assign(link.linked_index, attribute.u32());
    case IFLA_LINK_NETNSID:
      return assign(link.linked_namespace, attribute.u32());
    case IFLA_MASTER:
      return assign(link.master, attribute.u32());
    case IFLA_NET_NS_FD:
      return assign(link.namespace_fd, attribute.u32());
    case IFLA_EXT_MASK:
      return assign(link.extension_mask, attribute.u32());
    case IFLA_LINKINFO:
      return assign(link.info, decode_info(attribute, peers));
    default:
      return false;
  }
}

std::optional<Link> decode(ByteView payload, Peer peers) {
  const auto header = take_header<ifinfomsg>(payload);
  if (!header) return std::nullopt;
  Link link;
  link.family = header->ifi_family;
  link.hardware_type = header->ifi_type;
  link.index = header->ifi_index;
  link.flags = header->ifi_flags;
  link.change = header->ifi_change;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    if (!decode_attribute(*attribute, link, peers)) link.others.push_back(keep(*attribute));
  }
  if (reader.malformed()) return std::nullopt;
  return link;
}

void write_raw_text(MessageWriter& writer, uint16_t type, const std::string& text) {
  writer.attribute(type, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

void encode_info(const LinkInfo& info, MessageWriter& writer) {
  const size_t nest = writer.open_nest(IFLA_LINKINFO);
  if (info.kind) write_raw_text(writer, IFLA_INFO_KIND, *info.kind);
  if (!info.peer.empty() || !info.data.empty()) {
    const size_t data = writer.open_nest(IFLA_INFO_DATA);
    for (const auto& peer : info.peer) {
      const size_t position = writer.open_nest(VETH_INFO_PEER);
      encode(peer, writer);
      writer.close_nest(position);
    }
    write_others(writer, info.data);
    writer.close_nest(data);
  }
  write_others(writer, info.others);
  writer.close_nest(nest);
}

void put(MessageWriter& writer, uint16_t type, const std::optional<uint32_t>& value) {
  if (value) writer.u32(type, *value);
}

}  // namespace

std::string without_zero(const std::string& text) { return text.substr(0, text.find('\0')); }

std::string LinkInfo::kind_name() const { return kind ? without_zero(*kind) : std::string(); }

std::optional<uint8_t> address_generation(const Link& link) {
  for (const auto& other : link.others) {
    if (view(other).type != IFLA_AF_SPEC) continue;
    const auto inet6 = find(view(other).payload, AF_INET6);
    const auto mode = inet6 ? find(inet6->payload, IFLA_INET6_ADDR_GEN_MODE) : std::nullopt;
    if (mode) return mode->u8();
  }
  return std::nullopt;
}

void set_address_generation(Link& link, uint8_t mode) {
  MessageWriter inner;
  inner.u8(IFLA_INET6_ADDR_GEN_MODE, mode);
  MessageWriter families;
  families.attribute(AF_INET6, {inner.bytes().data(), inner.bytes().size()});
  link.others.push_back({IFLA_AF_SPEC, families.bytes()});
}

std::optional<Link> decode_link(ByteView payload) { return decode(payload, Peer::kDecode); }

void encode(const Link& link, MessageWriter& writer) {
  ifinfomsg header{};
  header.ifi_family = link.family;
  header.ifi_type = link.hardware_type;
  header.ifi_index = link.index;
  header.ifi_flags = link.flags;
  header.ifi_change = link.change;
  writer.header(header);
  if (link.mac) writer.attribute(IFLA_ADDRESS, {link.mac->data(), link.mac->size()});
  put(writer, IFLA_MTU, link.mtu);
  if (link.alias) write_raw_text(writer, IFLA_IFALIAS, *link.alias);
  put(writer, IFLA_GROUP, link.group);
  put(writer, IFLA_TXQLEN, link.tx_queue_length);
  put(writer, IFLA_NUM_TX_QUEUES, link.tx_queues);
  put(writer, IFLA_NUM_RX_QUEUES, link.rx_queues);
  if (link.oper_state) writer.u8(IFLA_OPERSTATE, *link.oper_state);
  put(writer, IFLA_LINK, link.linked_index);
  put(writer, IFLA_LINK_NETNSID, link.linked_namespace);
  put(writer, IFLA_MASTER, link.master);
  put(writer, IFLA_NET_NS_FD, link.namespace_fd);
  if (link.name) writer.text(IFLA_IFNAME, *link.name);
  put(writer, IFLA_EXT_MASK, link.extension_mask);
  if (link.info) encode_info(*link.info, writer);
  write_others(writer, link.others);
}

}  // namespace podwire::netlink
