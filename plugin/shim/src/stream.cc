#include "stream.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace podwire {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;

}  // namespace

void PrepareStandardStreams() {
  signal(SIGPIPE, SIG_IGN);
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // Read-only on purpose: stdin is then empty, and writing an answer nobody can read still fails.
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
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

}  // namespace podwire
