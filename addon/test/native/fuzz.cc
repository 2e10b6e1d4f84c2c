// One input: any datagram. Reading stays within it, and what could be read survives being written and read
// again unchanged. `make fuzz` builds it for libFuzzer; the codec's test runs it on damaged captures.
#include <cstdlib>

#include "decode_any.h"
#include "netfilter/set_field.h"
#include "netfilter/table_watch.h"

namespace {

using namespace podwire::netlink;

// Objects that have a writer are read again from its output.
void CheckAgain(const test::Decoded& first) {
  if (first.encoded.empty()) return;
  MessageReader reader({first.encoded.data(), first.encoded.size()});
  const auto message = reader.Next();
  const auto second = message ? test::DecodeAny(*message) : std::nullopt;
  if (!second || second->text != first.text || second->encoded != first.encoded) std::abort();
}

// JavaScript's text of elements, with each kind of field.
void CheckElements(const std::string& text) {
  const SetType type{{FieldType::kIfname, FieldType::kIpv4Addr, FieldType::kInetService}, {FieldType::kIpv6Addr}, true};
  std::vector<SetElement> made;
  for (const auto& element : SplitElements(type, text).value_or(std::vector<TypedElement>())) {
    AppendElement(type, element, made);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MessageReader reader({data, size});
  CheckElements({reinterpret_cast<const char*>(data), size});
  TableWatch watch({{1, "podwire"}});
  while (const auto message = reader.Next()) {
    watch.Take(*message);
    if (const auto decoded = test::DecodeAny(*message)) CheckAgain(*decoded);
  }
  return 0;
}
