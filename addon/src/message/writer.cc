#include "message/writer.h"

#include <linux/netlink.h>

#include <cstring>

namespace podwire::netlink {

void MessageWriter::Append(const void* data, size_t size) {
  if (size == 0) return;
  const auto* begin = static_cast<const uint8_t*>(data);
  bytes_.insert(bytes_.end(), begin, begin + size);
}

void MessageWriter::Pad() { bytes_.resize(NLMSG_ALIGN(bytes_.size())); }

void MessageWriter::Begin(uint16_t type, uint16_t flags, uint32_t sequence) {
  message_ = bytes_.size();
  nlmsghdr header{};
  header.nlmsg_type = type;
  header.nlmsg_flags = flags;
  header.nlmsg_seq = sequence;
  Append(&header, sizeof header);
}

void MessageWriter::End() {
  const auto length = static_cast<uint32_t>(bytes_.size() - message_);
  std::memcpy(bytes_.data() + message_ + offsetof(nlmsghdr, nlmsg_len), &length, sizeof length);
}

void MessageWriter::Attribute(uint16_t type, ByteView payload) {
  const size_t position = OpenNest(type);
  Append(payload.data, payload.size);
  CloseNest(position);
}

void MessageWriter::U32(uint16_t type, uint32_t value) {
  Attribute(type, {reinterpret_cast<const uint8_t*>(&value), sizeof value});
}

void MessageWriter::Text(uint16_t type, std::string_view value) {
  const uint8_t zero = 0;
  const size_t position = OpenNest(type);
  Append(value.data(), value.size());
  Append(&zero, sizeof zero);
  CloseNest(position);
}

size_t MessageWriter::OpenNest(uint16_t type) {
  const size_t position = bytes_.size();
  nlattr header{};
  header.nla_type = type;
  Append(&header, sizeof header);
  return position;
}

void MessageWriter::CloseNest(size_t position) {
  const auto length = static_cast<uint16_t>(bytes_.size() - position);
  std::memcpy(bytes_.data() + position + offsetof(nlattr, nla_len), &length, sizeof length);
  Pad();
}

}  // namespace podwire::netlink
