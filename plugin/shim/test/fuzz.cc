// libFuzzer entry: whatever the bytes, no part may read outside them, and each has to agree with itself.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "configuration.h"
#include "deadline.h"
#include "error_document.h"
#include "json_scan.h"
#include "request.h"
#include "response.h"

namespace podwire {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void FuzzScanner(std::string_view text) {
  Buffer value;
  const Lookup found = FindTopLevelString(text, "socket", value);
  Require(found == Lookup::kString || value.Size() == 0);
  const bool is_object = found != Lookup::kMalformed && found != Lookup::kNoObject;
  Require(is_object == IsJsonObject(text));
}

void FuzzErrorDocument(std::string_view text) {
  const Failure failure{CniCode::kInputOutput, Concat({text}), Concat({text})};
  Require(IsJsonObject(WriteErrorDocument(failure, text).View()));
}

// A response means the same however its bytes are cut.
void FuzzParser(std::string_view bytes) {
  ResponseParser whole;
  ResponseParser cut;
  const ResponseParser::State expected = whole.Feed(bytes);
  ResponseParser::State actual = ResponseParser::State::kIncomplete;
  for (const char& byte : bytes) actual = cut.Feed({&byte, 1});
  Require(actual == expected);
  Require(cut.Fault() == whole.Fault() && cut.Status() == whole.Status() && cut.Body() == whole.Body());
}

// No value of a variable, and no name of the program, becomes a header of its own.
void FuzzRequest(std::string_view bytes) {
  const std::string text(bytes.substr(0, bytes.find('\0')));
  const std::string args = "CNI_ARGS=" + text;
  const std::string trace = "TRACESTATE=" + text;
  const char* const entries[] = {text.c_str(), "CNI_COMMAND=ADD", args.c_str(), trace.c_str(), nullptr};
  Buffer head;
  const Call call{Environment(entries), text, 0, Deadline::In(0)};
  if (WriteRequestHead(call, bytes.size(), head)) return;
  std::size_t lines = 0;
  for (const char c : head.View()) lines += c == '\n' ? 1 : 0;
  constexpr std::size_t kOwnLines = 9;  // request line, six headers of every call, CNI-Command, the empty line
  const bool is_variable = text.compare(0, 4, "CNI_") == 0 || text.compare(0, 5, "TRACE") == 0 || text.compare(0, 8, "BAGGAGE=") == 0;
  Require(lines >= kOwnLines && lines <= kOwnLines + 2 + (is_variable ? 1 : 0));
}

// A path that is chosen fits into the address of a unix socket.
void FuzzSocketChoice(std::string_view text) {
  const Buffer version = StatedVersion(text);
  Require(version.Size() > 0 && version.Size() <= 64);
  SocketChoice choice;
  if (ChooseSocket(text, choice)) return;
  const std::string_view path = choice.path.View();
  Require(!path.empty() && path.front() == '/' && path.size() < 108 && path.find('\0') == path.npos);
}

}  // namespace
}  // namespace podwire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  podwire::FuzzScanner(text);
  podwire::FuzzErrorDocument(text);
  podwire::FuzzParser(text);
  podwire::FuzzRequest(text);
  podwire::FuzzSocketChoice(text);
  return 0;
}
