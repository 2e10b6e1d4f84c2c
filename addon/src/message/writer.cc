#include "message/writer.h"

#include <linux/netlink.h>

#include <cstring>

namespace podwire::netlink {

void MessageWriter::append(const void* data, size_t size) {
  if (size == 0) return;
  const auto* begin = static_cast<const uint8_t*>(data);
  bytes_.insert(bytes_.end(), begin, begin + size);
}

void MessageWriter::pad() { bytes_.resize(NLMSG_ALIGN(bytes_.size())); }

void MessageWriter::begin(uint16_t type, uint16_t flags, uint32_t sequence) {
  message_ = bytes_.size();
  nlmsghdr header{};
  header.nlmsg_type = type;
  header.nlmsg_flags = flags;
  header.nlmsg_seq = sequence;
  append(&header, sizeof header);
}

void MessageWriter::end() {
  const auto length = static_cast<uint32_t>(bytes_.size() - message_);
  std::memcpy(bytes_.data() + message_ + offsetof(nlmsghdr, nlmsg_len), &length, sizeof length);
}

void MessageWriter::attribute(uint16_t type, ByteView payload) {
  const size_t position = open_nest(type);
  append(payload.data, payload.size);
  close_nest(position);
}

void MessageWriter::u32(uint16_t type, uint32_t value) {
  attribute(type, {reinterpret_cast<const uint8_t*>(&value), sizeof value});
}

void MessageWriter::text(uint16_t type, std::string_view value) {
  const uint8_t zero = 0;
  const size_t position = open_nest(type);
  append(value.data(), value.size());
  append(&zero, sizeof zero);
  close_nest(position);
}

size_t MessageWriter::open_nest(uint16_t type) {
  const size_t position = bytes_.size();
  nlattr header{};
  header.nla_type = type;
  append(&header, sizeof header);
  return position;
}

void MessageWriter::close_nest(size_t position) {
  const auto length = static_cast<uint16_t>(bytes_.size() - position);
  std::memcpy(bytes_.data() + position + offsetof(nlattr, nla_len), &length, sizeof length);
  pad();
}

}  // namespace podwire::netlink
