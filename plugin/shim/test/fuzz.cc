// Entry point of libFuzzer, also called by the unit tests: for any input, no out-of-bounds reads, and all parsers agree
// with each other.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "configuration.h"
#include "deadline.h"
#include "error_document.h"
#include "http/request.h"
#include "http/response.h"
#include "text/json_scan.h"

namespace podwire {
namespace {

void Require(bool condition, int line = __builtin_LINE()) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d: not so\n", __FILE__, line);
  std::abort();
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

// The first words of a head's lines, up to a colon. Each may be there once.
std::set<std::string_view> FirstWords(std::string_view head) {
  std::set<std::string_view> words;
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    Require(end != head.npos);
    const std::string_view line = head.substr(0, end);
    Require(words.insert(line.substr(0, line.find(':'))).second);
    head.remove_prefix(end + 2);
  }
  return words;
}

// No variable's value and no program name adds a header: the set equals that of a harmless request.
void FuzzRequest(std::string_view bytes) {
  const std::string text(bytes.substr(0, bytes.find('\0')));
  const std::string args = "CNI_ARGS=" + text;
  const std::string trace = "TRACESTATE=" + text;
  const char* const entries[] = {text.c_str(), "CNI_COMMAND=ADD", args.c_str(), trace.c_str(), nullptr};
  Buffer head;
  if (WriteRequestHead({Environment(entries), text, 0, Deadline::In(0)}, bytes.size(), head)) return;
  std::string harmless[std::size(kVariables)];
  const char* harmless_entries[std::size(kVariables) + 1] = {};
  for (std::size_t i = 0; i < std::size(kVariables); ++i) {
    harmless[i] = std::string(kVariables[i].name) + "=x";
    harmless_entries[i] = harmless[i].c_str();
  }
  Buffer harmless_head;
  Require(!WriteRequestHead({Environment(harmless_entries), "x", 0, Deadline::In(0)}, 0, harmless_head));
  const std::set<std::string_view> known = FirstWords(harmless_head.View());
  for (const std::string_view word : FirstWords(head.View())) Require(known.count(word) == 1);
}

// A valid path fits into the address of a unix socket.
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
