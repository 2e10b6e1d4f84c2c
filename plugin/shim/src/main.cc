// Podwire's CNI executable. The container runtime runs it for each CNI call; it passes the call to the resident plugin
// and prints the answer. It has no policy: all decisions are the plugin's.

#include <unistd.h>

#include <cstring>
#include <utility>

#include "configuration.h"
#include "environment.h"
#include "error_document.h"
#include "http/connection.h"
#include "http/request.h"
#include "probe/probe.h"
#include "protocol.h"
#include "ready_lease.h"
#include "spool.h"
#include "stream.h"
#include "supervisor.h"
#include "text/json_scan.h"

namespace podwire {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 1;

// First line of the usage. By this text installers of every release know the shim (plugin/install/conflist.ts), so that
// an upgrade and a downgrade replace it: it never changes.
constexpr std::string_view kMark = "podwire: CNI plugin; hands each call to podwire-node";

// The resident's answer to STATUS of a ready node, and to a DEL.
constexpr std::string_view kEmptyAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

bool IsForwarded(std::string_view command) {
  for (const std::string_view verb : {"ADD", "DEL", "CHECK", "GC", "STATUS"}) {
    if (command == verb) return true;
  }
  return false;
}

int PrintUsage(const Deadline& deadline) {
  Buffer text = Concat({kMark, "\nCNI versions:"});
  for (const std::string_view version : kSupportedVersions) text.Append(Concat({" ", version}).View());
  text.Append('\n');
  // A failure to print is ignored: the usage text is optional.
  static_cast<void>(WriteAll(STDERR_FILENO, text.View(), deadline));
  return kSuccess;
}

int Print(std::string_view answer, const Deadline& deadline) {
  return WriteAll(STDOUT_FILENO, answer, deadline) ? kSuccess : kFailure;
}

int PrintVersions(const Deadline& deadline) {
  Buffer json = Concat({"{\"cniVersion\":"});
  AppendJsonString(json, ReadRequestedVersion().View());
  json.Append(",\"supportedVersions\":[");
  std::string_view separator = "";
  for (const std::string_view version : kSupportedVersions) {
    json.Append(Concat({separator, "\"", version, "\""}).View());
    separator = ",";
  }
  json.Append("]}\n");
  return Print(json.View(), deadline);
}

Failure UnknownCommand(std::string_view command) {
  // libcni compares this exact text.
  return {CniCode::kBadEnvironment, Concat({"unknown CNI_COMMAND: ", command}),
          Concat({"use ADD, DEL, CHECK, GC, STATUS or VERSION"})};
}

// Reports an invalid configuration that the unreachable resident cannot report.
Failure Undecodable(const Failure& unreachable) {
  return {CniCode::kDecodeFailure,
          Concat({"the network configuration is not a JSON object, and ", unreachable.message.View()}),
          Concat({"correct the configuration; ", unreachable.details.View()})};
}

Failure NoErrorDocument(std::string_view path, int status) {
  return {CniCode::kInputOutput,
          Concat({"the podwire plugin at ", path, " answered HTTP status ", Decimal(static_cast<unsigned>(status)),
                  " without a CNI error document"}),
          Concat({"check that the podwire plugin owns this socket, and its log; ", DebugHint(path).View()})};
}

// The resident that answered is stopping, and has rolled back.
Failure Unfinished(std::string_view path) {
  return {CniCode::kTryAgainLater, Concat({"the podwire plugin at ", path, " is stopping, and none follows"}),
          Concat({"check that podwire-node runs on this node, and its log; ", DebugHint(path).View()})};
}

// Keeps a DEL whose success was not confirmed for the next resident, which may execute it a second time. Returns the
// failure of the call, and why the DEL was not kept; nothing when it was.
std::optional<Failure> SpoolDel(const Call& call, const Connection& connection, const Request& request,
                                Failure unconfirmed) {
  const auto attachment = AttachmentOf(call.environment, request.body);
  if (!attachment) return unconfirmed;
  const auto fault = WriteToSpool(connection.path, SpoolName(*attachment).View(), request);
  if (!fault) return std::nullopt;
  unconfirmed.message.Append(Concat({"; the DEL cannot be spooled: ", fault->View()}).View());
  return unconfirmed;
}

// Asks the resident, and the next one if that one is stopping or, for a DEL, ended before it answered. If none follows,
// the outcome of the first one stands.
std::optional<Failure> Ask(Connection& connection, const Request& request, bool is_del, ResponseParser& response) {
  if (auto failure = Connect(connection)) return failure;
  auto failure = Exchange(connection, request, response);
  const bool is_lost = is_del && failure && failure->code == CniCode::kTryAgainLater && !connection.is_late;
  const bool is_stopping = !failure && response.Status() == kStatusStopping;
  if (!is_lost && !is_stopping) return failure;

  if (is_stopping && connection.window_ms > 0) connection.window_ms = kConnectWindowMs;
  ResponseParser next;
  if (Connect(connection)) return failure;
  failure = Exchange(connection, request, next);
  response = std::move(next);
  return failure;
}

std::optional<Failure> Forward(const Call& call, std::string_view configuration, ResponseParser& response) {
  const std::string_view command = call.environment.Get(kCommandVariable);
  if (!IsForwarded(command)) return UnknownCommand(command);

  Buffer head;
  if (auto failure = WriteRequestHead(call, configuration.size(), head)) return failure;

  SocketChoice choice;
  if (auto failure = ChooseSocket(configuration, choice)) return failure;

  const bool has_lease = command == "STATUS" && HoldsReadyLease(choice.path.View());
  const bool is_del = command == "DEL" && choice.is_configuration_object;
  // The plugin would reject an invalid configuration anyway, so there is no need to wait for its restart.
  const int window_ms = !choice.is_configuration_object || has_lease ? 0 : is_del ? kDelWindowMs : kConnectWindowMs;
  Connection connection{choice.path.View(), call.deadline, window_ms, {}};
  const Request request = {head.View(), configuration};
  auto failure = Ask(connection, request, is_del, response);
  if (is_del && !failure && response.Status() == kStatusStopping) failure = Unfinished(connection.path);
  if (failure && (failure->code == CniCode::kTryAgainLater || (is_del && connection.is_no_socket))) {
    if (!connection.was_open && !choice.is_configuration_object && !has_lease) return Undecodable(*failure);
    if (is_del) failure = SpoolDel(call, connection, request, std::move(*failure));
    if (failure && !has_lease) return failure;
    response = ResponseParser();
    response.Feed(kEmptyAnswer);
    return std::nullopt;
  }
  if (failure) return failure;

  const bool is_answer = response.Status() == 200 || IsJsonObject(response.Body());
  return is_answer ? std::nullopt : std::optional(NoErrorDocument(connection.path, response.Status()));
}

int Run(const Call& call) {
  const std::string_view command = call.environment.Get(kCommandVariable);
  if (command.empty()) return PrintUsage(call.deadline);
  if (command == "VERSION") return PrintVersions(call.deadline);

  Buffer configuration;
  ResponseParser response;
  auto failure = ReadConfiguration(call.deadline, configuration);
  if (!failure) failure = Forward(call, configuration.View(), response);
  if (failure) {
    Print(WriteErrorDocument(*failure, configuration.View()).View(), call.deadline);
    return kFailure;
  }
  const int printed = Print(response.Body(), call.deadline);
  return response.Status() == 200 ? printed : kFailure;
}

std::string_view PluginName(int argument_count, char** arguments) {
  if (argument_count < 1 || arguments[0][0] == '\0') return "podwire";
  const char* const slash = std::strrchr(arguments[0], '/');
  return slash == nullptr ? arguments[0] : slash + 1;
}

}  // namespace
}  // namespace podwire

int main(int argument_count, char** arguments) {
  const std::uint64_t exec_time_unix_ns = podwire::UnixTimeNs();
  podwire::PrepareStandardStreams();
  const std::string_view name = podwire::PluginName(argument_count, arguments);
  if (name == "podwire-probe") return podwire::RunProbe(argument_count - 1, arguments + 1);
  if (name == "podwire-run") return podwire::RunSupervisor(argument_count - 1, arguments + 1);
  if (argument_count > 1 && std::string_view(arguments[1]) == "probe") {
    return podwire::RunProbe(argument_count - 2, arguments + 2);
  }
  return podwire::Run(
      {podwire::Environment(environ), name, exec_time_unix_ns, podwire::Deadline::In(podwire::kOverallDeadlineMs)});
}
