#pragma once

#include <memory>
#include <string>

#include "socket/namespace.h"
#include "socket/request.h"

namespace podwire::netlink::test {

/** Requests as src/binding makes them from the API's. */
Request add_veth(const std::string& name, const std::string& peer, const std::shared_ptr<const Netns>& peer_namespace);
Request add_vxlan(const std::string& name, uint32_t vni);
Request set_up(uint32_t index);
Request add_address(uint32_t index, const std::string& address, uint8_t length);
/** A blackhole, which needs no link. */
Request add_route(const std::string& destination, uint8_t length);
Request add_neighbour(uint32_t index, const std::string& address);
Request append_fdb(uint32_t index, const std::string& destination);

/** A network namespace without another user, which ends with its last owner. Aborts when none can be created. */
std::shared_ptr<Namespace> make_namespace();

}  // namespace podwire::netlink::test
