#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "binding/object_reader.h"
#include "socket/namespace.h"

namespace podwire::netlink {

/** Properties that several steps have. All leave a pending exception when the property is wrong. */
std::optional<std::vector<uint8_t>> read_mac(ObjectReader& reader, const char* name);
std::optional<IpAddress> read_address(ObjectReader& reader, const char* name);
std::optional<std::shared_ptr<Namespace>> read_namespace(ObjectReader& reader, const char* name);

/** A link: an index goes into the request's object at once, a name is looked up when the request's turn comes. */
void read_selector(ObjectReader reader, Request& request);

}  // namespace podwire::netlink
