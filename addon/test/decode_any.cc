#include "decode_any.h"

#include <linux/rtnetlink.h>

#include <cstdio>

#include "message/writer.h"
#include "object/address.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/route.h"

namespace podwire::netlink::test {

namespace {

class Fields {
 public:
  void add(const char* name, const std::string& value) { text_ += (text_.empty() ? "" : " ") + (name + ("=" + value)); }
  void add(const char* name, const std::optional<std::string>& value) {
    if (value) add(name, *value);
  }
  void add(const char* name, uint32_t value) { add(name, std::to_string(value)); }
  void add(const char* name, const std::optional<uint32_t>& value) {
    if (value) add(name, *value);
  }
  void add(const char* name, const std::optional<IpAddress>& value) {
    if (value) add(name, value->text());
  }
  void add(const char* name, const std::optional<std::vector<uint8_t>>& mac) {
    if (!mac) return;
    std::string text;
    char part[4];
    for (const uint8_t byte : *mac) {
      std::snprintf(part, sizeof part, "%s%02x", text.empty() ? "" : ":", byte);
      text += part;
    }
    add(name, text);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string describe(const Link& link) {
  Fields fields;
  fields.add("index", static_cast<uint32_t>(link.index));
  fields.add("flags", link.flags);
  fields.add("name", link.name);
  fields.add("mac", link.mac);
  fields.add("mtu", link.mtu);
  if (link.alias) fields.add("alias", without_zero(*link.alias));
  fields.add("group", link.group);
  fields.add("link", link.linked_index);
  fields.add("netnsid", link.linked_namespace);
  if (link.info) fields.add("kind", link.info->kind_name());
  if (link.info && !link.info->peer.empty()) fields.add("peer", "(" + describe(link.info->peer.front()) + ")");
  return fields.text();
}

std::string describe(const Address& address) {
  Fields fields;
  fields.add("family", address.family);
  fields.add("length", address.prefix_length);
  fields.add("scope", address.scope);
  fields.add("link", address.link_index);
  fields.add("local", address.local);
  fields.add("address", address.address);
  fields.add("label", address.label);
  fields.add("flags", address.flags.value_or(address.header_flags));
  return fields.text();
}

std::string describe(const Route& route) {
  Fields fields;
  fields.add("family", route.family);
  fields.add("length", route.destination_length);
  fields.add("protocol", route.protocol);
  fields.add("scope", route.scope);
  fields.add("type", route.type);
  fields.add("destination", route.destination);
  fields.add("gateway", route.gateway);
  fields.add("source", route.preferred_source);
  fields.add("table", route.table.value_or(route.header_table));
  fields.add("priority", route.priority);
  fields.add("output", route.output);
  return fields.text();
}

std::string describe(const Neighbour& neighbour) {
  Fields fields;
  fields.add("family", neighbour.family);
  fields.add("link", static_cast<uint32_t>(neighbour.link_index));
  fields.add("state", neighbour.state);
  fields.add("flags", neighbour.flags);
  fields.add("destination", neighbour.destination);
  fields.add("mac", neighbour.mac);
  return fields.text();
}

template <typename Object>
std::optional<Decoded> there_and_back(const Message& message, const std::optional<Object>& object) {
  if (!object) return std::nullopt;
  MessageWriter writer;
  writer.begin(message.type, message.flags, message.sequence);
  encode(*object, writer);
  writer.end();
  return Decoded{describe(*object), writer.bytes()};
}

}  // namespace

std::optional<Decoded> decode_any(const Message& message) {
  switch (message.type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
    case RTM_GETLINK:
    case RTM_SETLINK:
      return there_and_back(message, decode_link(message.payload));
    case RTM_NEWADDR:
    case RTM_DELADDR:
    case RTM_GETADDR:
      return there_and_back(message, decode_address(message.payload));
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
    case RTM_GETROUTE:
      return there_and_back(message, decode_route(message.payload));
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
    case RTM_GETNEIGH:
      return there_and_back(message, decode_neighbour(message.payload));
    default:
      return std::nullopt;
  }
}

}  // namespace podwire::netlink::test
