#include "object/address.h"

#include <linux/if_addr.h>

namespace podwire::netlink {

namespace {

bool decode_attribute(const Attribute& attribute, Address& address) {
  if (attribute.raw_type != attribute.type) return false;
  switch (attribute.type) {
    case IFA_LOCAL:
      return assign(address.local, IpAddress::from(address.family, attribute.payload));
    case IFA_ADDRESS:
      return assign(address.address, IpAddress::from(address.family, attribute.payload));
    case IFA_LABEL:
      return assign(address.label, attribute.text());
    case IFA_FLAGS:
      return assign(address.flags, attribute.u32());
    default:
      return false;
  }
}

}  // namespace

std::optional<Address> decode_address(ByteView payload) {
  const auto header = take_header<ifaddrmsg>(payload);
  if (!header) return std::nullopt;
  Address address;
  address.family = header->ifa_family;
  address.prefix_length = header->ifa_prefixlen;
  address.header_flags = header->ifa_flags;
  address.scope = header->ifa_scope;
  address.link_index = header->ifa_index;
  AttributeReader reader(payload);
  while (const auto attribute = reader.next()) {
    if (!decode_attribute(*attribute, address)) address.others.push_back(keep(*attribute));
  }
  if (reader.malformed()) return std::nullopt;
  return address;
}

void encode(const Address& address, MessageWriter& writer) {
  ifaddrmsg header{};
  header.ifa_family = address.family;
  header.ifa_prefixlen = address.prefix_length;
  header.ifa_flags = address.header_flags;
  header.ifa_scope = address.scope;
  header.ifa_index = address.link_index;
  writer.header(header);
  if (address.local) writer.attribute(IFA_LOCAL, address.local->view());
  if (address.label) writer.text(IFA_LABEL, *address.label);
  if (address.flags) writer.u32(IFA_FLAGS, *address.flags);
  if (address.address) writer.attribute(IFA_ADDRESS, address.address->view());
  write_others(writer, address.others);
}

}  // namespace podwire::netlink
