#pragma once

#include <linux/netlink.h>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "message/reader.h"
#include "message/writer.h"

namespace podwire::netlink {

// An attribute that an object has no field for. Kept, so that decoding and encoding again loses nothing.
struct OtherAttribute {
  uint16_t raw_type;
  std::vector<uint8_t> payload;
};

inline OtherAttribute Keep(const Attribute& attribute) {
  const auto& [data, size] = attribute.payload;
  return {attribute.raw_type, std::vector<uint8_t>(data, data + size)};
}

// A kept attribute, to be read; good as long as `other` is.
inline Attribute View(const OtherAttribute& other) {
  return {static_cast<uint16_t>(other.raw_type & NLA_TYPE_MASK),
          other.raw_type,
          {other.payload.data(), other.payload.size()}};
}

inline void WriteAttributes(MessageWriter& writer, const std::vector<OtherAttribute>& attributes) {
  for (const auto& other : attributes) writer.Attribute(other.raw_type, {other.payload.data(), other.payload.size()});
}

// Assigns a present value to the field; false: the attribute belongs into the list of unknown ones.
template <typename Value>
bool Assign(std::optional<Value>& field, std::optional<Value> value) {
  if (!value || field) return false;
  field = std::move(value);
  return true;
}

// The attributes of a nest that is written in an order of our own.
class AttributeList {
 public:
  void Add(uint16_t type, ByteView payload) {
    attributes_.push_back({type, std::vector<uint8_t>(payload.data, payload.data + payload.size)});
  }
  template <typename Number, typename = std::enable_if_t<std::is_unsigned_v<Number>>>
  void Add(uint16_t type, Number number) {
    Add(type, ByteView{reinterpret_cast<const uint8_t*>(&number), sizeof number});
  }
  std::vector<OtherAttribute> Take() { return std::move(attributes_); }

 private:
  std::vector<OtherAttribute> attributes_;
};

}  // namespace podwire::netlink
