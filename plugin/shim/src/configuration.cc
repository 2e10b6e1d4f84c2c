#include "configuration.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "http/connection.h"
#include "protocol.h"
#include "stream.h"
#include "text/json_scan.h"

namespace podwire {
namespace {

// A longer version is a mistake and would hide the message.
constexpr std::size_t kMaxVersionBytes = 64;

Failure BadSocketKey(std::string_view fault) {
  return {CniCode::kInvalidConfiguration, Concat({"the key socket of the network configuration ", fault}),
          Concat({"give the absolute path of the podwire plugin's unix socket, or omit the key for ", kDefaultSocket})};
}

}  // namespace

std::optional<Failure> ReadConfiguration(const Deadline& deadline, Buffer& configuration) {
  switch (ReadToEnd(STDIN_FILENO, {kMaxConfigurationBytes, deadline}, configuration)) {
    case ReadOutcome::kEnd:
      return std::nullopt;
    case ReadOutcome::kTooLarge:
      return Failure{CniCode::kInvalidConfiguration, Concat({"the network configuration is larger than 4 MiB"}),
                     Concat({"make it smaller: a usual one has less than 10 kB"})};
    case ReadOutcome::kTimeout:
      return Failure{
          CniCode::kInputOutput,
          Concat({"the network configuration on stdin did not end within ", Decimal(kOverallDeadlineMs), " ms"}),
          Concat({"close stdin after writing the configuration"})};
    case ReadOutcome::kError:
      break;
  }
  return Failure{CniCode::kInputOutput, Concat({"cannot read the network configuration from stdin: ", strerror(errno)}),
                 Concat({"connect stdin to a pipe or a file"})};
}

Buffer ReadRequestedVersion() {
  Buffer configuration;
  if (isatty(STDIN_FILENO) == 0) {
    // Even if stdin did not end, a complete document read so far counts.
    static_cast<void>(ReadToEnd(STDIN_FILENO, {kMaxConfigurationBytes, Deadline::In(kVersionInputMs)}, configuration));
  }
  return StatedVersion(configuration.View());
}

std::optional<Failure> ChooseSocket(std::string_view configuration, SocketChoice& choice) {
  const Lookup found = FindTopLevelString(configuration, "socket", choice.path);
  choice.is_configuration_object = found != Lookup::kMalformed && found != Lookup::kNoObject;
  if (found == Lookup::kOtherType) return BadSocketKey("is not a string");
  if (found != Lookup::kString) {
    choice.path = Concat({kDefaultSocket});
    return std::nullopt;
  }
  const std::string_view path = choice.path.View();
  if (path.empty() || path.front() != '/') return BadSocketKey("is not an absolute path");
  if (path.find('\0') != path.npos) return BadSocketKey("holds a NUL character");
  if (path.size() > kMaxSocketPathBytes) {
    return BadSocketKey(Concat({"has ", Decimal(path.size()), " bytes; a unix socket's path has at most ",
                                Decimal(kMaxSocketPathBytes)})
                            .View());
  }
  return std::nullopt;
}

Buffer StatedVersion(std::string_view configuration) {
  Buffer version;
  const bool is_stated = FindTopLevelString(configuration, "cniVersion", version) == Lookup::kString &&
                         version.Size() > 0 && version.Size() <= kMaxVersionBytes;
  return is_stated ? std::move(version) : Concat({kOwnVersion});
}

}  // namespace podwire
