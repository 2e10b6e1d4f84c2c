// The lease for answering STATUS while the resident plugin restarts.
#pragma once

#include <string_view>

namespace podwire {

// Whether the lease is valid: the file node-ready beside the socket has a modification time in the future. The resident
// sets it (plugin/commands/readiness-record.ts).
bool HoldsReadyLease(std::string_view socket_path);

}  // namespace podwire
