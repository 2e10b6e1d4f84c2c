#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "message/bytes.h"

namespace podwire::netlink {

// Writes netlink messages one behind the other into one growing buffer, with all the padding that netlink(7) asks for.
//
// Between `begin` and `end` there is exactly one message, in it first the family's header, then attributes. A nest is
// closed with the position that opening it returned.
class MessageWriter {
 public:
  void Begin(uint16_t type, uint16_t flags, uint32_t sequence);
  void End();

  // The fixed part behind the netlink header, such as `ifinfomsg`; also at the beginning of VETH_INFO_PEER.
  template <typename Struct>
  void Header(const Struct& header) {
    static_assert(std::is_trivially_copyable_v<Struct>);
    Append(&header, sizeof header);
    Pad();
  }

  void Attribute(uint16_t type, ByteView payload);
  void U8(uint16_t type, uint8_t value) { Attribute(type, {&value, sizeof value}); }
  void U32(uint16_t type, uint32_t value);
  // With the final zero byte that the kernel expects of names.
  void Text(uint16_t type, std::string_view value);

  [[nodiscard]] size_t OpenNest(uint16_t type);
  void CloseNest(size_t position);

  const std::vector<uint8_t>& Bytes() const { return bytes_; }

 private:
  void Append(const void* data, size_t size);
  void Pad();

  std::vector<uint8_t> bytes_;
  size_t message_ = 0;
};

}  // namespace podwire::netlink
