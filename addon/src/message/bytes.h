#pragma once

#include <cstddef>
#include <cstdint>

namespace podwire::netlink {

/** Bytes of somebody else's buffer. */
struct ByteView {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

}  // namespace podwire::netlink
