#include "object/link.h"

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
    if (inner->type == IFLA_INFO_KIND) known = Assign(info.kind, std::optional(inner->RawText()));
    if (inner->type == IFLA_INFO_DATA && inner->raw_type == inner->type) known = DecodeData(*inner, info, peers);
    if (!known) info.unknown_attributes.push_back(Keep(*inner));
  }
  if (reader.Malformed()) return std::nullopt;
  return info;
}

std::optional<Link> Decode(ByteView payload, Peer peers) {
  return DecodeObject<Link>(payload, [&](const Attribute& attribute, Link& link) {
    return attribute.type == IFLA_LINKINFO && Assign(link.info, DecodeInfo(attribute, peers));
  });
}

void EncodeInfo(const LinkInfo& info, MessageWriter& writer) {
  const size_t nest = writer.OpenNest(IFLA_LINKINFO);
  FieldWriter(writer).Raw(IFLA_INFO_KIND, info.kind);
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
  EncodeFields(link, writer);
  if (link.info) EncodeInfo(*link.info, writer);
  WriteAttributes(writer, link.unknown_attributes);
}

}  // namespace podwire::netlink
