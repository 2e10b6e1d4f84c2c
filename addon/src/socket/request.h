#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "netfilter/conntrack.h"
#include "object/address.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/qdisc.h"
#include "object/route.h"
#include "object/rule.h"
#include "socket/netns.h"
#include "socket/result.h"

namespace podwire::netlink {

// One message to the kernel.
struct Request {
  // RTM_* and NLM_F_*, without NLM_F_REQUEST and NLM_F_ACK.
  uint16_t type = 0;
  uint16_t flags = 0;
  std::variant<Link, Address, Route, Rule, Neighbour, ConntrackEntry, Qdisc> object;
  // A link whose index must be put into `object` before it is sent; of a new link, the device below its tunnel.
  std::optional<std::string> lookup;
  // Keeps open what `object` names by file descriptor.
  std::shared_ptr<const Netns> peer_namespace;

  void SetLinkIndex(uint32_t index);
};

// The kernel's answer to a request.
struct Reply {
  std::optional<KernelError> error;
  std::optional<Link> link = std::nullopt;
  // Former value of a sysctl that was written, if requested.
  std::optional<std::string> previous = std::nullopt;
  std::optional<Qdisc> qdisc = std::nullopt;
};

// Both select by index, or by name when that is not empty.
Request GetLink(uint32_t index, const std::string& name);
Request DeleteLink(uint32_t index, const std::string& name);

}  // namespace podwire::netlink
