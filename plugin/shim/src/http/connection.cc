#include "http/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "protocol.h"
#include "stream.h"

namespace podwire {

const std::size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;

namespace {

constexpr std::size_t kReceiveBytes = 64u << 10;

// No user has this ID (setuid(2)).
constexpr uid_t kNoUser = static_cast<uid_t>(-1);

// Stands for every user that this user namespace does not map (user_namespaces(7)).
constexpr uid_t kUnmappedUser = 65534;

// Transient: the resident plugin is restarting, or (EAGAIN) its accept queue is full.
bool IsTransient(int error) { return error == ENOENT || error == ECONNREFUSED || error == EAGAIN; }

// The kernel returns ECONNREFUSED for a path that is not a socket, as for a socket without listener.
bool IsOtherThanSocket(std::string_view path) {
  struct stat found {};
  return stat(Concat({path, std::string_view("\0", 1)}).View().data(), &found) == 0 && !S_ISSOCK(found.st_mode);
}

Failure Unreachable(const Connection& connection, int error) {
  const std::string_view path = connection.path;
  if (error == EACCES || error == EPERM) {
    return {CniCode::kInputOutput, Concat({"no permission to connect to the podwire plugin at ", path}),
            Concat({"only root may use it: run the container runtime as root"})};
  }
  const bool is_transient = IsTransient(error);
  Buffer message = Concat({"cannot connect to the podwire plugin at ", path, ": ", WhyUnreachable(error)});
  if (is_transient && connection.window_ms > 0) {
    message.Append(Concat({" (waited ", Decimal(static_cast<unsigned>(connection.window_ms)), " ms)"}).View());
  }
  return {is_transient ? CniCode::kTryAgainLater : CniCode::kInputOutput, std::move(message),
          Concat({"check that podwire-node runs on this node, and its log; ", DebugHint(path).View()})};
}

Failure BadResponse(std::string_view path, std::string_view fault) {
  return {CniCode::kInputOutput, Concat({"the answer at ", path, " cannot be used: ", fault}),
          Concat({"check that the podwire plugin owns this socket, and its log; ", DebugHint(path).View()})};
}

// The user whose process listens at the socket, and that process, as the kernel noted them at its listen (unix(7)).
ucred Listener(const Descriptor& socket) {
  ucred listener{};
  socklen_t size = sizeof(listener);
  if (getsockopt(socket.Get(), SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0) listener.uid = kNoUser;
  return listener;
}

// An answer decides what network a pod has, so it is taken from root or from the own user alone.
bool IsTrusted(const ucred& listener) {
  return listener.uid == 0 || (listener.uid == geteuid() && listener.uid != kUnmappedUser);
}

Failure UntrustedListener(std::string_view path, const ucred& listener) {
  return {CniCode::kInputOutput,
          Concat({"the socket ", path, " belongs to a process of user ", Decimal(listener.uid), ", not of root"}),
          Concat({"end process ", Decimal(static_cast<unsigned>(listener.pid)),
                  ", make the directory of the socket writable by root only, and start podwire-node as root"})};
}

// Waits while the whole call and the silence of the resident are within their limits; 0 afterwards.
short WaitForPeer(const Connection& connection, short events) {
  const int remaining_ms = std::min(kSilenceMs, connection.deadline.RemainingMs());
  return WaitFor(connection.socket.Get(), events, Deadline::In(remaining_ms));
}

Failure NoAnswerInTime(Connection& connection) {
  const std::string_view path = connection.path;
  connection.is_late = true;
  if (!connection.deadline.HasPassed()) {
    return {CniCode::kTryAgainLater,
            Concat({"the podwire plugin at ", path, " accepted the call and sent nothing for ", Decimal(kSilenceMs),
                    " ms"}),
            Concat({"check that podwire-node owns this socket; restart it if it hangs; ", DebugHint(path).View()})};
  }
  return {CniCode::kTryAgainLater,
          Concat({"the podwire plugin at ", path, " did not answer within ", Decimal(kOverallDeadlineMs), " ms"}),
          Concat({"it may still execute the call; check its log, and that of podwire-ipam; ", DebugHint(path).View()})};
}

// The plugin's process ended, or could not accept the connection.
Failure ClosedUnanswered(std::string_view path, std::size_t answer_bytes) {
  const Buffer when = answer_bytes == 0 ? Concat({"without an answer"})
                                        : Concat({"after ", Decimal(answer_bytes), " bytes of its answer"});
  return {CniCode::kTryAgainLater, Concat({"the podwire plugin at ", path, " closed the connection ", when.View()}),
          Concat({"it may have stopped, or have no file descriptor left (RLIMIT_NOFILE); see its log. It may have "
                  "executed the call; ",
                  DebugHint(path).View()})};
}

enum class SendOutcome { kSent, kPeerStoppedReading, kTimeout };

// The cast is safe: sendmsg does not modify the data.
iovec Part(std::string_view bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

// Sends head and body in one call, so that the resident wakes up once.
SendOutcome Send(const Connection& connection, Request request) {
  while (!request.head.empty() || !request.body.empty()) {
    iovec parts[] = {Part(request.head), Part(request.body)};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    const ssize_t count = sendmsg(connection.socket.Get(), &message, MSG_NOSIGNAL);
    if (count >= 0) {
      const std::size_t of_head = std::min(static_cast<std::size_t>(count), request.head.size());
      request.head.remove_prefix(of_head);
      request.body.remove_prefix(static_cast<std::size_t>(count) - of_head);
    } else if (errno == EAGAIN) {
      const short ready = WaitForPeer(connection, POLLIN | POLLOUT);
      if (ready == 0) return SendOutcome::kTimeout;
      if ((ready & POLLOUT) == 0) return SendOutcome::kPeerStoppedReading;
    } else if (errno != EINTR) {
      return SendOutcome::kPeerStoppedReading;
    }
  }
  return SendOutcome::kSent;
}

std::optional<Failure> Receive(Connection& connection, ResponseParser& response) {
  char bytes[kReceiveBytes];
  std::size_t total = 0;
  for (;;) {
    if (WaitForPeer(connection, POLLIN) == 0) return NoAnswerInTime(connection);
    const ssize_t count = recv(connection.socket.Get(), bytes, sizeof(bytes), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return ClosedUnanswered(connection.path, total);
    total += static_cast<std::size_t>(count);
    const ResponseParser::State state = response.Feed({bytes, static_cast<std::size_t>(count)});
    if (state == ResponseParser::State::kMalformed) return BadResponse(connection.path, response.Fault());
    if (state == ResponseParser::State::kComplete) return std::nullopt;
  }
}

}  // namespace

std::string_view WhyUnreachable(int error) {
  switch (error) {
    case ENOTSOCK:
      return "it is a file or a directory, not a unix socket";
    case ENOENT:
      return "the socket does not exist";  // not strerror's words: see failure.h
    case ECONNREFUSED:
      return "no process listens on the socket";
    case EAGAIN:
      return "the socket's accept queue is full";
    default:
      return strerror(error);
  }
}

int TryToConnect(std::string_view path, Descriptor& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  socket.Reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.Get() < 0) return errno;
  // A unix socket connects at once or not at all, so EINTR leaves nothing behind to wait for.
  while (connect(socket.Get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (error == ECONNREFUSED && IsOtherThanSocket(path)) return ENOTSOCK;
    if (error != EINTR) return error;
  }
  return 0;
}

std::optional<Failure> Connect(Connection& connection) {
  const Deadline window = Deadline::In(connection.window_ms);
  for (;;) {
    const int error = TryToConnect(connection.path, connection.socket);
    if (error == 0) {
      connection.was_open = true;
      const ucred listener = Listener(connection.socket);
      return IsTrusted(listener) ? std::nullopt : std::optional(UntrustedListener(connection.path, listener));
    }
    connection.is_no_socket = error == ENOTSOCK;
    if (!IsTransient(error) || window.HasPassed() || connection.deadline.HasPassed())
      return Unreachable(connection, error);
    PauseMs(kConnectPauseMs);
  }
}

std::optional<Failure> Exchange(Connection& connection, const Request& request, ResponseParser& response) {
  const SendOutcome outcome = Send(connection, request);
  if (outcome == SendOutcome::kTimeout) return NoAnswerInTime(connection);
  // A peer that stopped reading may have sent the reason, so its answer is read in any case.
  return Receive(connection, response);
}

Buffer DebugHint(std::string_view path) {
  return Concat({"ask it manually: curl -i --unix-socket ", path, " -H 'CNI-Command: STATUS' -d '{\"cniVersion\":\"",
                 kOwnVersion, "\",\"name\":\"podwire\"}' http://podwire/cni"});
}

}  // namespace podwire
