#include "message/reader.h"

#include <linux/netlink.h>

namespace podwire::netlink {

namespace {

// The bytes behind a part of `length` bytes and its padding; the last part may lack padding.
ByteView Behind(ByteView bytes, size_t length) {
  const size_t aligned = NLMSG_ALIGN(length);
  const size_t step = aligned < bytes.size ? aligned : bytes.size;
  return {bytes.data + step, bytes.size - step};
}

template <typename Value>
std::optional<Value> Exact(ByteView payload) {
  if (payload.size != sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, payload.data, sizeof value);
  return value;
}

}  // namespace

std::optional<Message> MessageReader::Next() {
  if (rest_.size == 0 || malformed_) return std::nullopt;
  nlmsghdr header;
  if (rest_.size < sizeof header) {
    malformed_ = true;
    return std::nullopt;
  }
  std::memcpy(&header, rest_.data, sizeof header);
  if (header.nlmsg_len < sizeof header || header.nlmsg_len > rest_.size) {
    malformed_ = true;
    return std::nullopt;
  }
  const ByteView payload{rest_.data + sizeof header, header.nlmsg_len - sizeof header};
  rest_ = Behind(rest_, header.nlmsg_len);
  return Message{header.nlmsg_type, header.nlmsg_flags, header.nlmsg_seq, payload};
}

std::optional<Attribute> AttributeReader::Next() {
  if (rest_.size == 0 || malformed_) return std::nullopt;
  nlattr header;
  if (rest_.size < sizeof header) {
    malformed_ = true;
    return std::nullopt;
  }
  std::memcpy(&header, rest_.data, sizeof header);
  if (header.nla_len < sizeof header || header.nla_len > rest_.size) {
    malformed_ = true;
    return std::nullopt;
  }
  const ByteView payload{rest_.data + sizeof header, header.nla_len - sizeof header};
  rest_ = Behind(rest_, header.nla_len);
  return Attribute{static_cast<uint16_t>(header.nla_type & NLA_TYPE_MASK), header.nla_type, payload};
}

std::optional<uint8_t> Attribute::U8() const { return Exact<uint8_t>(payload); }
std::optional<uint16_t> Attribute::U16() const { return Exact<uint16_t>(payload); }
std::optional<uint32_t> Attribute::U32() const { return Exact<uint32_t>(payload); }

std::optional<std::string> Attribute::Text() const {
  if (payload.size == 0) return std::nullopt;
  const auto* zero = static_cast<const uint8_t*>(std::memchr(payload.data, 0, payload.size));
  if (zero != payload.data + payload.size - 1) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(payload.data), payload.size - 1);
}

}  // namespace podwire::netlink
