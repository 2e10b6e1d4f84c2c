#include "http/request.h"

#include "protocol.h"

namespace podwire {
namespace {

bool HasControlCharacter(std::string_view value) {
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) return true;
  }
  return false;
}

Failure BadValue(std::string_view name, std::string_view fault) {
  return {CniCode::kBadEnvironment, Concat({"the environment variable ", name, " ", fault}),
          Concat({"correct the value that the container runtime sets for ", name})};
}

// Why HTTP would change a value; empty if it would not.
std::string_view FaultOf(std::string_view value) {
  if (HasControlCharacter(value)) return "holds a control character";
  if (value.front() == ' ' || value.back() == ' ') return "begins or ends with a space";
  return {};
}

void AppendHeader(Buffer& head, std::string_view name, std::string_view value) {
  head.Append(name);
  head.Append(": ");
  head.Append(value);
  head.Append("\r\n");
}

Failure TooLong(const Environment& environment) {
  const Variable* longest = kVariables;
  for (const Variable& variable : kVariables) {
    if (environment.Get(variable.name).size() > environment.Get(longest->name).size()) longest = &variable;
  }
  return BadValue(longest->name, Concat({"has ", Decimal(environment.Get(longest->name).size()),
                                         " bytes, too many: all variables of a CNI call may have ",
                                         Decimal(kMaxRequestHeadBytes), " bytes together, with their headers"})
                                     .View());
}

}  // namespace

std::optional<Failure> WriteRequestHead(const Call& call, std::size_t body_bytes, Buffer& head) {
  head.Append("POST /cni HTTP/1.1\r\n");
  AppendHeader(head, "Host", "podwire");
  AppendHeader(head, "Connection", "close");
  AppendHeader(head, "Content-Type", "application/json");
  AppendHeader(head, "Content-Length", Decimal(body_bytes));
  AppendHeader(head, "CNI-Exec-Time", Decimal(call.exec_time_unix_ns));
  AppendHeader(head, "Podwire-Release", kRelease);
  if (HasControlCharacter(call.plugin)) {
    return Failure{CniCode::kBadEnvironment, Concat({"the plugin was run under a name with a control character"}),
                   Concat({"run it by its path, as podwire or podwire-ipam"})};
  }
  AppendHeader(head, "CNI-Plugin", call.plugin);
  const bool is_del = call.environment.Get(kCommandVariable) == "DEL";
  for (const Variable& variable : kVariables) {
    const std::string_view value = call.environment.Get(variable.name);
    if (value.empty()) continue;
    const bool is_optional = variable.need == Need::kTrace || (is_del && variable.need == Need::kDetail);
    const std::string_view fault = FaultOf(value);
    if (is_optional && (!fault.empty() || value.size() > kMaxOptionalBytes)) continue;
    if (!fault.empty()) return BadValue(variable.name, fault);
    AppendHeader(head, variable.header, value);
  }
  head.Append("\r\n");
  if (head.Size() > kMaxRequestHeadBytes) return TooLong(call.environment);
  return std::nullopt;
}

}  // namespace podwire
