#include "netfilter/packet_log.h"

#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <cstring>

namespace podwire::netlink {

namespace {

constexpr uint16_t TypeOf(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_ULOG << 8 | message); }

// The kernel collects packets for this long, in hundredths of a second.
constexpr uint32_t kFlushAfter = 10;

std::optional<uint32_t> HostOrder(const std::optional<uint32_t>& value) {
  return value ? std::optional(ntohl(*value)) : std::nullopt;
}

}  // namespace

bool IsLoggedPacket(const Message& message) { return message.type == TypeOf(NFULNL_MSG_PACKET); }

std::optional<LoggedPacket> DecodeLoggedPacket(ByteView payload) {
  if (!TakeHeader<nfgenmsg>(payload)) return std::nullopt;
  LoggedPacket packet;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    const auto& [data, size] = attribute->payload;
    if (attribute->type == NFULA_PREFIX) packet.prefix = attribute->Text().value_or("");
    if (attribute->type == NFULA_IFINDEX_INDEV) packet.input_index = HostOrder(attribute->U32());
    if (attribute->type == NFULA_IFINDEX_OUTDEV) packet.output_index = HostOrder(attribute->U32());
    if (attribute->type == NFULA_PAYLOAD) packet.payload.assign(data, data + size);
  }
  if (reader.Malformed()) return std::nullopt;
  return packet;
}

void WriteBinding(const PacketLog& log, MessageWriter& writer) {
  writer.Begin(TypeOf(NFULNL_MSG_CONFIG), NLM_F_REQUEST | NLM_F_ACK, 1);
  nfgenmsg header{};
  header.nfgen_family = AF_UNSPEC;
  header.version = NFNETLINK_V0;
  header.res_id = htons(log.group);
  writer.Header(header);
  writer.U8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND);
  nfulnl_msg_config_mode mode{};
  mode.copy_range = htonl(log.copy_bytes);
  mode.copy_mode = NFULNL_COPY_PACKET;
  writer.Attribute(NFULA_CFG_MODE, {reinterpret_cast<const uint8_t*>(&mode), sizeof mode});
  writer.U32(NFULA_CFG_TIMEOUT, htonl(kFlushAfter));
  writer.End();
}

}  // namespace podwire::netlink
