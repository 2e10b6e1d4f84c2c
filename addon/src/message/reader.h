#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "message/bytes.h"

namespace podwire::netlink {

// Takes a fixed header off the front of `bytes`; nothing when they are too few.
template <typename Header>
std::optional<Header> TakeHeader(ByteView& bytes) {
  static_assert(std::is_trivially_copyable_v<Header>);
  if (bytes.size < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes.data, sizeof header);
  const size_t aligned = (sizeof header + 3) & ~size_t{3};
  const size_t step = aligned < bytes.size ? aligned : bytes.size;
  bytes = {bytes.data + step, bytes.size - step};
  return header;
}

// One netlink message; `payload` is what follows its header.
struct Message {
  uint16_t type;
  uint16_t flags;
  uint32_t sequence;
  ByteView payload;
};

// The messages of one datagram. A length that does not fit ends the iteration and sets `malformed`.
class MessageReader {
 public:
  explicit MessageReader(ByteView bytes) : rest_(bytes) {}
  std::optional<Message> Next();
  bool Malformed() const { return malformed_; }

 private:
  ByteView rest_;
  bool malformed_ = false;
};

// One attribute. Its readers give nothing when the length is not that of the type.
struct Attribute {
  // Without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
  uint16_t type;
  // With them.
  uint16_t raw_type;
  ByteView payload;

  std::optional<uint8_t> U8() const;
  std::optional<uint16_t> U16() const;
  std::optional<uint32_t> U32() const;
  // Up to the final zero byte, which must be there and be the only one.
  std::optional<std::string> Text() const;
  std::string RawText() const { return {reinterpret_cast<const char*>(payload.data), payload.size}; }
};

// The attributes of a message or a nest. A length that does not fit ends the iteration and sets `malformed`.
class AttributeReader {
 public:
  explicit AttributeReader(ByteView bytes) : rest_(bytes) {}
  std::optional<Attribute> Next();
  bool Malformed() const { return malformed_; }

 private:
  ByteView rest_;
  bool malformed_ = false;
};

}  // namespace podwire::netlink
