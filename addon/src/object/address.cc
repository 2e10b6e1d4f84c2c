#include "object/address.h"

#include <linux/if_addr.h>

namespace podwire::netlink {

namespace {

bool DecodeAttribute(const Attribute& attribute, Address& address) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case IFA_LOCAL:
      return Assign(address.local, IpAddress::From(address.family, attribute.payload));
    case IFA_ADDRESS:
      return Assign(address.address, IpAddress::From(address.family, attribute.payload));
    case IFA_LABEL:
      return Assign(address.label, attribute.Text());
    case IFA_FLAGS:
      return Assign(address.flags, attribute.U32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Address> DecodeAddress(ByteView payload) {
  const auto header = TakeHeader<ifaddrmsg>(payload);
  if (!header) return std::nullopt;
  Address address;
  address.family = header->ifa_family;
  address.prefix_length = header->ifa_prefixlen;
  address.header_flags = header->ifa_flags;
  address.scope = header->ifa_scope;
  address.link_index = header->ifa_index;
  AttributeReader reader(payload);
  while (const auto attribute = reader.Next()) {
    if (!DecodeAttribute(*attribute, address)) address.unknown_attributes.push_back(Keep(*attribute));
  }
  if (reader.Malformed()) return std::nullopt;
  return address;
}

void Encode(const Address& address, MessageWriter& writer) {
  ifaddrmsg header{};
  header.ifa_family = address.family;
  header.ifa_prefixlen = address.prefix_length;
  header.ifa_flags = address.header_flags;
  header.ifa_scope = address.scope;
  header.ifa_index = address.link_index;
  writer.Header(header);
  if (address.local) writer.Attribute(IFA_LOCAL, address.local->View());
  if (address.label) writer.Text(IFA_LABEL, *address.label);
  if (address.flags) writer.U32(IFA_FLAGS, *address.flags);
  if (address.address) writer.Attribute(IFA_ADDRESS, address.address->View());
  WriteAttributes(writer, address.unknown_attributes);
}

}  // namespace podwire::netlink
