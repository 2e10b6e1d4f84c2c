#include "binding/fields.h"

#include <array>
#include <cstdio>

#include "binding/namespace_handle.h"

namespace podwire::netlink {

std::optional<std::vector<uint8_t>> read_mac(ObjectReader& reader, const char* name) {
  const auto text = reader.optional_text(name);
  if (!text) return std::nullopt;
  std::array<unsigned, 6> parts{};
  int end = 0;
  const int count = std::sscanf(text->c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &parts[0], &parts[1], &parts[2], &parts[3],
                                &parts[4], &parts[5], &end);
  if (count != 6 || static_cast<size_t>(end) != text->size()) reader.fail(name, "a MAC address");
  return std::vector<uint8_t>(parts.begin(), parts.end());
}

std::optional<IpAddress> read_address(ObjectReader& reader, const char* name) {
  const auto text = reader.optional_text(name);
  if (!text) return std::nullopt;
  const auto address = IpAddress::parse(*text);
  if (!address) reader.fail(name, "an IP address");
  return address;
}

std::optional<std::shared_ptr<Namespace>> read_namespace(ObjectReader& reader, const char* name) {
  const auto value = reader.value(name);
  if (value.IsNull()) return std::nullopt;
  auto found = NamespaceHandle::namespace_of(value);
  if (found) return found;
  reader.fail(name, "an open namespace");
  return std::nullopt;
}

/** An index goes into the object at once, a name is looked up when the request's turn comes. */
void read_selector(ObjectReader reader, Request& request) {
  const uint32_t index = reader.number("index");
  request.lookup = reader.optional_text("name");
  if (!request.lookup) request.set_link_index(index);
}

}  // namespace podwire::netlink
