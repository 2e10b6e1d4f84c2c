#pragma once

#include <cstdint>
#include <vector>

#include "message/reader.h"
#include "message/writer.h"

namespace podwire::netlink {

/** An attribute that an object has no field for. Kept, so that decoding and encoding again loses nothing. */
struct OtherAttribute {
  uint16_t raw_type;
  std::vector<uint8_t> payload;
};

inline OtherAttribute keep(const Attribute& attribute) {
  const auto& [data, size] = attribute.payload;
  return {attribute.raw_type, std::vector<uint8_t>(data, data + size)};
}

inline void write_others(MessageWriter& writer, const std::vector<OtherAttribute>& others) {
  for (const auto& other : others) writer.attribute(other.raw_type, {other.payload.data(), other.payload.size()});
}

/** Puts a value into the field when there is one; false sends the attribute to the others. */
template <typename Value>
bool assign(std::optional<Value>& field, std::optional<Value> value) {
  if (!value || field) return false;
  field = std::move(value);
  return true;
}

}  // namespace podwire::netlink
