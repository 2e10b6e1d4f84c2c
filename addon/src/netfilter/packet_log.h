#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "message/reader.h"
#include "message/writer.h"

namespace podwire::netlink {

// A group of nfnetlink_log, which one socket of a network namespace receives.
struct PacketLog {
  uint16_t group = 0;
  // Bytes of each packet that the kernel copies at most.
  uint32_t copy_bytes = 0;
};

// NFULNL_MSG_PACKET: `nfgenmsg` and NFULA_* of linux/netfilter/nfnetlink_log.h. A packet that a rule has logged.
struct LoggedPacket {
  std::string prefix;
  // Absent for a packet that the node sends, or that has no route yet.
  std::optional<uint32_t> input_index;
  std::optional<uint32_t> output_index;
  // From the network header on, cut.
  std::vector<uint8_t> payload;
};

bool IsLoggedPacket(const Message& message);
// Nothing when the payload is malformed.
std::optional<LoggedPacket> DecodeLoggedPacket(ByteView payload);

// A message that binds the sending socket to the group.
void WriteBinding(const PacketLog& log, MessageWriter& writer);

}  // namespace podwire::netlink
