#include "netfilter/set_element.h"

#include <arpa/inet.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <sys/socket.h>

namespace podwire::netlink {

namespace {

// A list is an attribute, whose length has 16 bits; the longest element, with all its padding, fits behind this.
constexpr size_t kListBytesMax = 64'000;

ByteView ViewOf(const std::vector<uint8_t>& bytes) { return {bytes.data(), bytes.size()}; }

std::optional<uint32_t> BigEndian32(const Attribute& attribute) {
  const auto number = attribute.U32();
  return number ? std::optional(ntohl(*number)) : std::nullopt;
}

void EncodeValue(uint16_t type, const std::vector<uint8_t>& value, MessageWriter& writer) {
  const size_t nest = writer.OpenNest(type | NLA_F_NESTED);
  writer.Attribute(NFTA_DATA_VALUE, ViewOf(value));
  writer.CloseNest(nest);
}

void EncodeVerdict(const Verdict& verdict, MessageWriter& writer) {
  const size_t data = writer.OpenNest(NFTA_SET_ELEM_DATA | NLA_F_NESTED);
  const size_t nest = writer.OpenNest(NFTA_DATA_VERDICT | NLA_F_NESTED);
  writer.U32(NFTA_VERDICT_CODE, htonl(static_cast<uint32_t>(verdict.code)));
  if (verdict.chain) writer.Text(NFTA_VERDICT_CHAIN, *verdict.chain);
  writer.CloseNest(nest);
  writer.CloseNest(data);
}

// In libnftnl's order, so that a request can be compared byte for byte.
void EncodeElement(const SetElement& element, uint16_t type, MessageWriter& writer) {
  const size_t nest = writer.OpenNest(type | NLA_F_NESTED);
  if (element.flags) writer.U32(NFTA_SET_ELEM_FLAGS, htonl(*element.flags));
  if (element.key) EncodeValue(NFTA_SET_ELEM_KEY, *element.key, writer);
  if (element.key_end) EncodeValue(NFTA_SET_ELEM_KEY_END, *element.key_end, writer);
  if (element.verdict) EncodeVerdict(*element.verdict, writer);
  if (element.value) EncodeValue(NFTA_SET_ELEM_DATA, *element.value, writer);
  WriteAttributes(writer, element.unknown_attributes);
  writer.CloseNest(nest);
}

void EncodeHeader(uint8_t family, MessageWriter& writer) {
  nfgenmsg header{};
  header.nfgen_family = family;
  header.version = NFNETLINK_V0;
  writer.Header(header);
}

}  // namespace

void EncodeElements(const SetElements& list, size_t first, MessageWriter& writer, std::vector<size_t>& positions) {
  EncodeHeader(list.name.family, writer);
  writer.Text(NFTA_SET_ELEM_LIST_TABLE, list.name.table);
  writer.Text(NFTA_SET_ELEM_LIST_SET, list.name.set);
  WriteAttributes(writer, list.unknown_attributes);
  const size_t nest = writer.OpenNest(NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED);
  uint16_t type = NFTA_LIST_UNSPEC;
  for (size_t at = first; at < list.elements.size() && writer.Bytes().size() - nest < kListBytesMax; ++at) {
    positions.push_back(writer.Bytes().size());
    // Numbered as libnftnl does; the kernel ignores it.
    EncodeElement(list.elements[at], ++type, writer);
  }
  writer.CloseNest(nest);
}

void Encode(const SetElements& list, MessageWriter& writer) {
  std::vector<size_t> positions;
  EncodeElements(list, 0, writer, positions);
}

std::optional<Generation> DecodeGeneration(ByteView payload) {
  const auto header = TakeHeader<nfgenmsg>(payload);
  if (!header) return std::nullopt;
  Generation generation;
  bool has_id = false;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NFTA_GEN_ID) {
      const auto id = BigEndian32(*attribute);
      has_id = id.has_value();
      generation.id = id.value_or(0);
    }
    if (attribute->type == NFTA_GEN_PROC_PID) generation.process_id = BigEndian32(*attribute);
    if (attribute->type == NFTA_GEN_PROC_NAME) generation.process_name = attribute->Text();
  }
  if (reader.Malformed() || !has_id) return std::nullopt;
  return generation;
}

void Encode(const Generation& generation, MessageWriter& writer) {
  EncodeHeader(AF_UNSPEC, writer);
  writer.U32(NFTA_GEN_ID, htonl(generation.id));
  if (generation.process_id) writer.U32(NFTA_GEN_PROC_PID, htonl(*generation.process_id));
  if (generation.process_name) writer.Text(NFTA_GEN_PROC_NAME, *generation.process_name);
}

}  // namespace podwire::netlink
