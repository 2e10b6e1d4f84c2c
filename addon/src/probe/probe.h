#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "object/ip_address.h"
#include "socket/netns.h"
#include "socket/result.h"

namespace podwire::netlink {

// One packet that asks for an answer, never fragmented on its way.
struct Probe {
  IpAddress address{};
  // A TCP connection to this port, or a UDP datagram; 0: an ICMP echo request.
  uint16_t port = 0;
  bool udp = false;
  // Data of the echo request or of the datagram, after 8 bytes of a header.
  uint32_t payload_bytes = 0;
};

struct ProbeAnswer {
  // An errno value, ETIMEDOUT without any answer; 0: answered.
  int error = 0;
  double milliseconds = 0;
  // Host whose ICMP message refused the packet.
  std::optional<IpAddress> reporter;
  // With EMSGSIZE, the largest packet that passes; 0 if unknown.
  uint32_t mtu_bytes = 0;
};

// Sends all probes at once from inside the namespace, and waits for their answers. Blocks up to the timeout.
Result<std::vector<ProbeAnswer>> RunProbes(const Netns& netns, const std::vector<Probe>& probes,
                                           std::chrono::milliseconds timeout);

// A descriptor of a socket that listens for TCP on every address of the namespace. The kernel accepts connections.
Result<int> ListenTcp(const Netns& netns, uint16_t port);

// A descriptor of a new network namespace, which ends with its last descriptor and interface user.
Result<int> MakeNetns();

}  // namespace podwire::netlink
