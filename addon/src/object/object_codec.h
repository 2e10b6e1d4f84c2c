#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/attribute.h"
#include "object/ip_address.h"

namespace podwire::netlink {

// The codec of objects that are a fixed header of the kernel and attributes behind it. An object lists its attributes
// once, in `Fields`, in the order in which they are written. Attributes that it does not list are kept.

// Reads one attribute into the field that is listed for its type. The first of a type counts.
class FieldReader {
 public:
  FieldReader(const Attribute& attribute, uint8_t family) : attribute_(attribute), family_(family) {}
  bool Taken() const { return taken_; }

  template <typename Value>
  void operator()(uint16_t type, std::optional<Value>& field) {
    if (type == attribute_.raw_type) taken_ = Assign(field, Read(field));
  }
  // A text as it was sent, perhaps with a zero byte at its end.
  void Raw(uint16_t type, std::optional<std::string>& field) {
    if (type == attribute_.raw_type) taken_ = Assign(field, std::optional(attribute_.RawText()));
  }

 private:
  std::optional<uint8_t> Read(const std::optional<uint8_t>&) const { return attribute_.U8(); }
  std::optional<uint32_t> Read(const std::optional<uint32_t>&) const { return attribute_.U32(); }
  std::optional<std::string> Read(const std::optional<std::string>&) const { return attribute_.Text(); }
  std::optional<std::vector<uint8_t>> Read(const std::optional<std::vector<uint8_t>>&) const {
    const auto& [data, size] = attribute_.payload;
    return std::vector<uint8_t>(data, data + size);
  }
  // A forwarding entry of a bridge has addresses of either family.
  std::optional<IpAddress> Read(const std::optional<IpAddress>&) const {
    return family_ == AF_BRIDGE ? IpAddress::Of(attribute_.payload) : IpAddress::From(family_, attribute_.payload);
  }

  const Attribute& attribute_;
  uint8_t family_;
  bool taken_ = false;
};

// Writes the listed fields that have a value.
class FieldWriter {
 public:
  explicit FieldWriter(MessageWriter& writer) : writer_(writer) {}

  template <typename Value>
  void operator()(uint16_t type, const std::optional<Value>& field) {
    if (field) Write(type, *field);
  }
  void Raw(uint16_t type, const std::optional<std::string>& field) {
    if (field) writer_.Attribute(type, {reinterpret_cast<const uint8_t*>(field->data()), field->size()});
  }

 private:
  void Write(uint16_t type, uint8_t value) { writer_.U8(type, value); }
  void Write(uint16_t type, uint32_t value) { writer_.U32(type, value); }
  void Write(uint16_t type, const std::string& value) { writer_.Text(type, value); }
  void Write(uint16_t type, const std::vector<uint8_t>& value) {
    writer_.Attribute(type, {value.data(), value.size()});
  }
  void Write(uint16_t type, const IpAddress& value) { writer_.Attribute(type, value.View()); }

  MessageWriter& writer_;
};

// Nothing when the payload is malformed. `read_nest` tries to read an attribute that is not listed.
template <typename Object, typename ReadNest>
std::optional<Object> DecodeObject(ByteView payload, ReadNest read_nest) {
  // Every header begins with the family.
  const uint8_t family = payload.size > 0 ? payload.data[0] : uint8_t{AF_UNSPEC};
  const auto header = TakeHeader<decltype(Object::header)>(payload);
  if (!header) return std::nullopt;
  Object object;
  object.header = *header;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    FieldReader field(*attribute, family);
    Object::Fields(object, field);
    const bool is_plain = attribute->raw_type == attribute->type;
    const bool is_known = field.Taken() || (is_plain && read_nest(*attribute, object));
    if (!is_known) object.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return object;
}

template <typename Object>
std::optional<Object> DecodeObject(ByteView payload) {
  return DecodeObject<Object>(payload, [](const Attribute&, Object&) { return false; });
}

template <typename Object>
void EncodeFields(const Object& object, MessageWriter& writer) {
  writer.Header(object.header);
  FieldWriter field(writer);
  Object::Fields(object, field);
}

// An object without nests.
template <typename Object, typename = decltype(Object::header)>
void Encode(const Object& object, MessageWriter& writer) {
  EncodeFields(object, writer);
  WriteAttributes(writer, object.unknown_attributes);
}

}  // namespace podwire::netlink
