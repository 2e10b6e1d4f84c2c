// What the resident plugin left for STATUS to be answered with while it restarts.
#pragma once

#include <string_view>

namespace podwire {

// Whether the resident says that the node counts as ready without it: the file node-ready beside its socket has a
// modification time in the future. The resident sets it (plugin/commands/ready-mark.ts), and decides how long that is.
bool HoldsReadyLease(std::string_view socket_path);

}  // namespace podwire
