#include "netfilter/set_element.h"

#include <arpa/inet.h>
#include <endian.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <sys/socket.h>

#include <cstring>

namespace podwire::netlink {

namespace {

// A list is an attribute, whose length has 16 bits; the longest element, with all its padding, fits behind this.
constexpr size_t kListBytesMax = 64'000;

std::vector<uint8_t> BytesOf(ByteView view) { return {view.data, view.data + view.size}; }
ByteView ViewOf(const std::vector<uint8_t>& bytes) { return {bytes.data(), bytes.size()}; }

std::optional<uint32_t> BigEndian32(const Attribute& attribute) {
  const auto number = attribute.U32();
  return number ? std::optional(ntohl(*number)) : std::nullopt;
}

std::optional<uint64_t> BigEndian64(const Attribute& attribute) {
  uint64_t number = 0;
  if (attribute.payload.size != sizeof number) return std::nullopt;
  std::memcpy(&number, attribute.payload.data, sizeof number);
  return be64toh(number);
}

void WriteBigEndian64(uint16_t type, uint64_t number, MessageWriter& writer) {
  const uint64_t swapped = htobe64(number);
  writer.Attribute(type, {reinterpret_cast<const uint8_t*>(&swapped), sizeof swapped});
}

std::optional<Verdict> DecodeVerdict(ByteView nest) {
  Verdict verdict;
  bool has_code = false;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NFTA_VERDICT_CODE) {
      const auto code = BigEndian32(*attribute);
      has_code = code.has_value();
      verdict.code = static_cast<int32_t>(code.value_or(0));
    }
    if (attribute->type == NFTA_VERDICT_CHAIN) verdict.chain = attribute->Text();
  }
  if (reader.Malformed() || !has_code) return std::nullopt;
  return verdict;
}

// The bytes in a nest of NFTA_DATA_VALUE.
std::optional<std::vector<uint8_t>> DecodeValue(ByteView nest) {
  std::optional<std::vector<uint8_t>> value;
  AttributeReader reader(nest);
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NFTA_DATA_VALUE) value = BytesOf(attribute->payload);
  }
  if (reader.Malformed()) return std::nullopt;
  return value;
}

bool DecodeData(const Attribute& attribute, SetElement& element) {
  AttributeReader reader(attribute.payload);
  const auto data = reader.Next();
  if (!data || data->type != NFTA_DATA_VERDICT) return Assign(element.value, DecodeValue(attribute.payload));
  return Assign(element.verdict, DecodeVerdict(data->payload));
}

bool DecodeAttribute(const Attribute& attribute, SetElement& element) {
  switch (attribute.type) {
    case NFTA_SET_ELEM_KEY:
      return Assign(element.key, DecodeValue(attribute.payload));
    case NFTA_SET_ELEM_KEY_END:
      return Assign(element.key_end, DecodeValue(attribute.payload));
    case NFTA_SET_ELEM_DATA:
      return !element.value && !element.verdict && DecodeData(attribute, element);
    case NFTA_SET_ELEM_FLAGS:
      return Assign(element.flags, BigEndian32(attribute));
    case NFTA_SET_ELEM_TIMEOUT:
      return Assign(element.timeout_ms, BigEndian64(attribute));
    case NFTA_SET_ELEM_EXPIRATION:
      return Assign(element.expiration_ms, BigEndian64(attribute));
    default:
      return false;
  }
}

bool DecodeList(ByteView nest, std::vector<SetElement>& elements) {
  AttributeReader reader(nest);
  while (const auto item = reader.Next()) {
    SetElement element;
    AttributeReader attributes(item->payload);
    while (const auto attribute = attributes.Next()) {
      if (!DecodeAttribute(*attribute, element)) element.unknown_attributes.push_back(Keep(*attribute));
    }
    if (attributes.Malformed()) return false;
    elements.push_back(std::move(element));
  }
  return !reader.Malformed();
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
  if (element.timeout_ms) WriteBigEndian64(NFTA_SET_ELEM_TIMEOUT, *element.timeout_ms, writer);
  if (element.expiration_ms) WriteBigEndian64(NFTA_SET_ELEM_EXPIRATION, *element.expiration_ms, writer);
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

std::optional<SetElements> DecodeSetElements(ByteView payload) {
  const auto header = TakeHeader<nfgenmsg>(payload);
  if (!header) return std::nullopt;
  SetElements list;
  list.name.family = header->nfgen_family;
  std::optional<std::string> table;
  std::optional<std::string> set;
  AttributeReader reader(payload);
  bool has_list = false;
  while (const auto attribute = reader.Next()) {
    bool taken = false;
    if (attribute->type == NFTA_SET_ELEM_LIST_TABLE) taken = Assign(table, attribute->Text());
    if (attribute->type == NFTA_SET_ELEM_LIST_SET) taken = Assign(set, attribute->Text());
    if (attribute->type == NFTA_SET_ELEM_LIST_ELEMENTS) {
      if (has_list || !DecodeList(attribute->payload, list.elements)) return std::nullopt;
      taken = has_list = true;
    }
    if (!taken) list.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed() || !table || !set) return std::nullopt;
  list.name.table = std::move(*table);
  list.name.set = std::move(*set);
  return list;
}

void Encode(const SetName& name, MessageWriter& writer) {
  EncodeHeader(name.family, writer);
  writer.Text(NFTA_SET_ELEM_LIST_TABLE, name.table);
  writer.Text(NFTA_SET_ELEM_LIST_SET, name.set);
}

void EncodeElements(const SetElements& list, size_t first, MessageWriter& writer, std::vector<size_t>& positions) {
  Encode(list.name, writer);
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
