#pragma once

#include <sys/types.h>

#include "socket/result.h"

namespace podwire::netlink {

// The process at the other end of a unix socket.
struct PeerCredentials {
  // 0 when it is outside of this process's PID namespace.
  pid_t pid;
  // Effective user and group; the overflow ID (65534) when this process's user namespace does not map them.
  uid_t uid;
  gid_t gid;
};

// The credentials that the kernel noted at connect(2) or listen(2) (SO_PEERCRED of unix(7)). ENOTCONN when it noted
// none: the descriptor is of another kind of socket, or of one without a peer.
Result<PeerCredentials> ReadPeerCredentials(int descriptor);

}  // namespace podwire::netlink
