#include "stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>

namespace podwire {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;

// Writes as much as fits without blocking, after poll reported the descriptor writable. The runtime shares the
// descriptor, so O_NONBLOCK is not an option: a socket gets a per-call flag, and a writable pipe has room for PIPE_BUF
// bytes.
ssize_t WriteSome(int descriptor, std::string_view bytes) {
  const ssize_t count = send(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0 || errno != ENOTSOCK) return count;
  return write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
}

}  // namespace

void PrepareStandardStreams() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // stdout may be a file, under the runtime's limit for files
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // Read-only on purpose: stdin is then empty, and a write to the missing stdout still fails.
    const int opened = open("/dev/null", O_RDONLY);
    if (opened > STDERR_FILENO) close(opened);
  }
}

short WaitFor(int descriptor, short events, const Deadline& deadline) {
  for (;;) {
    pollfd polled{descriptor, events, 0};
    const int ready = poll(&polled, 1, deadline.RemainingMs());
    if (ready > 0) return polled.revents;
    if (ready == 0 || errno != EINTR) return 0;
  }
}

ReadOutcome ReadToEnd(int descriptor, const ReadLimits& limits, Buffer& bytes) {
  for (;;) {
    if (WaitFor(descriptor, POLLIN, limits.deadline) == 0) return ReadOutcome::kTimeout;
    const ssize_t count = read(descriptor, bytes.Room(kReadBytes), kReadBytes);
    if (count == 0) return ReadOutcome::kEnd;
    if (count > 0) {
      bytes.Grow(static_cast<std::size_t>(count));
      if (bytes.Size() > limits.max_bytes) return ReadOutcome::kTooLarge;
    } else if (errno != EINTR && errno != EAGAIN) {
      return ReadOutcome::kError;
    }
  }
}

bool WriteAll(int descriptor, std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    if (WaitFor(descriptor, POLLOUT, deadline) == 0) return false;
    const ssize_t count = WriteSome(descriptor, bytes);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

}  // namespace podwire
