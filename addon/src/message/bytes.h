#pragma once

#include <cstddef>
#include <cstdint>

namespace podwire::netlink {

// A view of bytes in a buffer that the caller owns.
struct ByteView {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

}  // namespace podwire::netlink
