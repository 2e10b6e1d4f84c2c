#include "probe/probe.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "deadline.h"
#include "http/connection.h"
#include "http/response.h"
#include "protocol.h"
#include "stream.h"

namespace podwire {
namespace {

constexpr int kHealthy = 0;
constexpr int kUnhealthy = 1;
constexpr int kBadUsage = 2;

constexpr std::string_view kUsage =
    "usage: podwire-probe [--live] [SOCKET...]\n"
    "Exits with 0 when the Podwire processes at all unix sockets (default /run/podwire/cni.sock) are serving,\n"
    "with 1 and the reason on stderr when one is not. --live: the processes answer at all.\n";

constexpr int kServing = 200;
constexpr int kNotServing = 503;

constexpr std::string_view kRequest = "GET /healthz HTTP/1.1\r\nHost: podwire\r\nConnection: close\r\n\r\n";

struct Probe {
  std::string_view path;
  bool is_live = false;
  Deadline deadline;
};

// Without libstdc++'s exit paths a failure to print is ignored: the exit code is the answer.
int Report(const Probe& probe, std::string_view fault) {
  const Buffer line = Concat({"podwire-probe: ", probe.path, ": ", fault, "\n"});
  static_cast<void>(WriteAll(STDERR_FILENO, line.View(), Deadline::In(kProbeMs)));
  return kUnhealthy;
}

int ReportSilence(const Probe& probe) {
  return Report(
      probe, Concat({"no answer within ", Decimal(kProbeMs), " ms; the process is stopped or overloaded, see its log"})
                 .View());
}

int ReportUnreachable(const Probe& probe, int error) {
  return Report(probe, Concat({"cannot connect: ", WhyUnreachable(error),
                               "; check that the process runs as the user of this probe, and its log"})
                           .View());
}

// Asks for the health over HTTP/1.1.
int Ask(const Probe& probe) {
  Descriptor socket;
  if (const int error = TryToConnect(probe.path, socket)) return ReportUnreachable(probe, error);
  // The request is smaller than the buffer of a new socket.
  if (!WriteAll(socket.Get(), kRequest, probe.deadline)) {
    return Report(probe, "the connection was closed; see the log of the process");
  }
  ResponseParser response;
  ResponseParser::State state = ResponseParser::State::kIncomplete;
  char bytes[4096];
  while (state == ResponseParser::State::kIncomplete) {
    if (WaitFor(socket.Get(), POLLIN, probe.deadline) == 0) return ReportSilence(probe);
    const ssize_t count = recv(socket.Get(), bytes, sizeof(bytes), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return Report(probe, "the connection was closed without an answer; see the log of the process");
    state = response.Feed(std::string_view(bytes, static_cast<std::size_t>(count)));
  }
  if (state == ResponseParser::State::kMalformed)
    return Report(probe, "the answer is not HTTP; use the socket of a Podwire process");
  if (probe.is_live || response.Status() == kServing) return kHealthy;
  if (response.Status() == kNotServing) return Report(probe, "the process is not serving; see its log");
  return Report(probe, Concat({"answered HTTP status ", Decimal(static_cast<unsigned>(response.Status())),
                               "; see the log of the process"})
                           .View());
}

int AskSocket(const Probe& probe) {
  if (probe.path.size() > kMaxSocketPathBytes) {
    return Report(probe, Concat({"the path is longer than ", Decimal(kMaxSocketPathBytes),
                                 " bytes; use the path of a unix socket"})
                             .View());
  }
  return Ask(probe);
}

int Print(int descriptor, int exit_code) {
  static_cast<void>(WriteAll(descriptor, kUsage, Deadline::In(kProbeMs)));
  return exit_code;
}

}  // namespace

int RunProbe(int argument_count, char** arguments) {
  bool is_live = false;
  int socket_count = 0;
  for (int at = 0; at < argument_count; ++at) {
    const std::string_view argument = arguments[at];
    if (argument == "--help") return Print(STDOUT_FILENO, kHealthy);
    if (argument == "--live") {
      is_live = true;
    } else if (argument.empty() || argument.front() == '-') {
      return Print(STDERR_FILENO, kBadUsage);
    } else {
      ++socket_count;
    }
  }
  // One deadline for all sockets, as the caller waits for all.
  const Deadline deadline = Deadline::In(kProbeMs);
  if (socket_count == 0) return AskSocket({kDefaultSocket, is_live, deadline});
  for (int at = 0; at < argument_count; ++at) {
    const std::string_view argument = arguments[at];
    if (argument == "--live") continue;
    const int exit_code = AskSocket({argument, is_live, deadline});
    if (exit_code != kHealthy) return exit_code;
  }
  return kHealthy;
}

}  // namespace podwire
