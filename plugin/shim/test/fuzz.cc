// libFuzzer entry: whatever the bytes, no part may read outside them, and each has to agree with itself.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "error_document.h"
#include "json_scan.h"
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
  Require(found != Lookup::kMalformed || !IsJsonObject(text));
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

}  // namespace
}  // namespace podwire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  podwire::FuzzScanner(text);
  podwire::FuzzErrorDocument(text);
  podwire::FuzzParser(text);
  return 0;
}
