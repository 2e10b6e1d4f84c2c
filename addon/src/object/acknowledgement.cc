#include "object/acknowledgement.h"

#include <linux/netlink.h>

#include <algorithm>

namespace podwire::netlink {

namespace {

// The kernel's MAX_ERRNO. What it sends is never positive.
constexpr int kErrnoMax = 4095;

std::optional<Acknowledgement> FromKernel(int error) {
  if (error > 0 || error < -kErrnoMax) return std::nullopt;
  return Acknowledgement{-error, std::nullopt};
}

// The copy of the request is whole, with its padding, or was capped to its header, which is part of `nlmsgerr`.
ByteView BehindRequest(const Message& message, const nlmsgerr& error, ByteView rest) {
  if ((message.flags & NLM_F_CAPPED) != 0 || error.msg.nlmsg_len <= sizeof(nlmsghdr)) return rest;
  const size_t copied =
      (size_t{error.msg.nlmsg_len} - sizeof(nlmsghdr) + NLMSG_ALIGNTO - 1) & ~size_t{NLMSG_ALIGNTO - 1};
  const size_t step = std::min(rest.size, copied);
  return {rest.data + step, rest.size - step};
}

}  // namespace

std::optional<Acknowledgement> DecodeAcknowledgement(const Message& message) {
  ByteView payload = message.payload;
  const auto error = TakeHeader<nlmsgerr>(payload);
  auto acknowledgement = error ? FromKernel(error->error) : std::nullopt;
  if (!acknowledgement || acknowledgement->error == 0 || (message.flags & NLM_F_ACK_TLVS) == 0) return acknowledgement;
  // Words that cannot be read are no reason to doubt the error.
  AttributeReader reader(BehindRequest(message, *error, payload));
  while (const auto attribute = reader.Next()) {
    if (attribute->type == NLMSGERR_ATTR_MSG) acknowledgement->text = attribute->Text();
    if (attribute->type == NLMSGERR_ATTR_OFFS) acknowledgement->offset = attribute->U32();
  }
  return acknowledgement;
}

std::optional<Acknowledgement> DecodeListEnd(const Message& message) {
  ByteView payload = message.payload;
  return FromKernel(TakeHeader<int>(payload).value_or(0));
}

}  // namespace podwire::netlink
