#pragma once

#include <memory>
#include <string>

#include "socket/namespace.h"
#include "socket/request.h"

namespace podwire::netlink::test {

// Requests as src/binding makes them from the API's.
Request AddVeth(const std::string& name, const std::string& peer, const std::shared_ptr<const Netns>& peer_namespace);
Request AddVxlan(const std::string& name, uint32_t vni);
Request SetUp(uint32_t index);
Request AddAddress(uint32_t index, const std::string& address, uint8_t length);
// A blackhole, which needs no link.
Request AddRoute(const std::string& destination, uint8_t length);
Request AddNeighbour(uint32_t index, const std::string& address);
Request AppendFdb(uint32_t index, const std::string& destination);

// A network namespace without another user, which ends with its last owner. Aborts when none can be created.
std::shared_ptr<Namespace> MakeNamespace();

}  // namespace podwire::netlink::test
