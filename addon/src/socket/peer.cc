#include "socket/peer.h"

#include <sys/socket.h>

#include <cerrno>

namespace podwire::netlink {

Result<PeerCredentials> ReadPeerCredentials(int descriptor) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return KernelError{errno, ""};
  // The kernel's answer for a socket without a peer process: no user has this ID (setuid(2)).
  if (credentials.uid == static_cast<uid_t>(-1)) return KernelError{ENOTCONN, "not a connected unix socket"};
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

}  // namespace podwire::netlink
