#pragma once

#include <cstdint>

#include "socket/netns.h"
#include "socket/socket.h"

namespace podwire::netlink {

// Deletes the entries that concern an address; how many there were. Waits for the kernel.
Result<uint32_t> DeleteConntrack(const Netns& netns, const IpAddress& address);

}  // namespace podwire::netlink
