// One request to the resident plugin, and its response, over its unix socket.
#pragma once

#include <optional>
#include <string_view>

#include "deadline.h"
#include "descriptor.h"
#include "failure.h"
#include "http/response.h"

namespace podwire {

struct Request {
  std::string_view head;
  std::string_view body;
};

struct Connection {
  std::string_view path;  // absolute, at most kMaxSocketPathBytes
  Deadline deadline;      // of the whole call
  int window_ms;          // how long to wait for a socket that is missing or refuses connections
  Descriptor socket;
  bool was_open = false;  // whether a process accepted it, at any attempt
  bool is_late =
      false;  // whether that process took the call and was then silent for kSilenceMs, or exceeded the deadline
  bool is_no_socket = false;  // whether the path is that of a file or a directory
};

// The longest path that a unix socket can have.
extern const std::size_t kMaxSocketPathBytes;

// Connects once, without waiting. 0, or errno; ENOTSOCK for a path that is not a socket.
int TryToConnect(std::string_view path, Descriptor& socket);

// Why TryToConnect failed, for a message.
std::string_view WhyUnreachable(int error);

// Fails with code 11 if the socket is still missing or refuses connections after window_ms, and with code 5 if another
// user than root or the own one listens at it. Nothing was sent then.
std::optional<Failure> Connect(Connection& connection);

// Sends the request and receives the response. Fails with code 11 when the deadline passes, the resident is silent for
// too long, or the connection ends before the response does, and with code 5 when the response is not HTTP. The
// resident may have executed the call.
std::optional<Failure> Exchange(Connection& connection, const Request& request, ResponseParser& response);

// A command to query the socket manually.
Buffer DebugHint(std::string_view path);

}  // namespace podwire
