// One request to the resident plugin, and its response, over its unix socket.
#pragma once

#include <optional>
#include <string_view>

#include "deadline.h"
#include "failure.h"
#include "response.h"

namespace podwire {

// A file descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Gives up what it held. -1 is no socket.
  void Reset(int descriptor);
  int Descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct Request {
  std::string_view head;
  std::string_view body;
};

struct Connection {
  std::string_view path;  // absolute, at most kMaxSocketPathBytes
  Deadline deadline;      // of the whole call
  int window_ms;          // how long a socket that is missing or refuses is waited for
  Socket socket;
};

// The longest path that a unix socket can have.
extern const std::size_t kMaxSocketPathBytes;

// Fails with code 11 where the socket is still missing or refusing after window_ms. Nothing was handed over then.
std::optional<Failure> Connect(Connection& connection);

// Sends the request and takes the response. Fails with code 11 when the deadline passes, and with code 5 when what comes
// back is no whole HTTP response; in both cases the resident may have carried the call out.
std::optional<Failure> Exchange(const Connection& connection, const Request& request, ResponseParser& response);

// How to look at the socket by hand.
Buffer DebugHint(std::string_view path);

}  // namespace podwire
