// One input: a datagram. Whatever it holds, reading it stays within it, and what could be read survives being written and read
// again unchanged. `make fuzz` builds it for libFuzzer; the codec's test runs it on damaged captures.
#include <cstdlib>

#include "decode_any.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace podwire::netlink;
  MessageReader reader({data, size});
  while (const auto message = reader.next()) {
    const auto first = test::decode_any(*message);
    if (!first) continue;
    MessageReader again({first->encoded.data(), first->encoded.size()});
    const auto second_message = again.next();
    const auto second = second_message ? test::decode_any(*second_message) : std::nullopt;
    if (!second || second->text != first->text || second->encoded != first->encoded) std::abort();
  }
  return 0;
}
