#include "probe/health_parser.h"

#include "check.h"
#include "protocol.h"

namespace podwire {
namespace {

constexpr std::string_view kSettings("\0\0\0\x04\0\0\0\0\0", 9);
constexpr std::string_view kHeaders("\0\0\x01\x01\x04\0\0\0\x01\x88", 10);
constexpr std::string_view kServing("\0\0\x07\0\0\0\0\0\x01\0\0\0\0\x02\x08\x01", 16);
constexpr std::string_view kNotServing("\0\0\x07\0\0\0\0\0\x01\0\0\0\0\x02\x08\x02", 16);
// An empty message is the status UNKNOWN.
constexpr std::string_view kUnknown("\0\0\x05\0\0\0\0\0\x01\0\0\0\0\0", 14);
constexpr std::string_view kEnd("\0\0\x01\x01\x05\0\0\0\x01\x88", 10);

std::string_view Name(Health health) {
  switch (health) {
    case Health::kIncomplete:
      return "incomplete";
    case Health::kServing:
      return "serving";
    case Health::kNotServing:
      return "not serving";
    case Health::kNoStatus:
      return "no status";
    case Health::kOtherProtocol:
      return "other protocol";
    case Health::kMalformed:
      return "malformed";
  }
  return "";
}

void ExpectHealth(std::initializer_list<std::string_view> parts, std::string_view expected) {
  const Buffer bytes = Concat(parts);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{7}, bytes.Size() + 1}) {
    HealthParser parser;
    Health health = Health::kIncomplete;
    for (std::string_view rest = bytes.View(); !rest.empty();) {
      const std::size_t count = rest.size() < piece ? rest.size() : piece;
      health = parser.Feed(rest.substr(0, count));
      rest.remove_prefix(count);
    }
    EXPECT_EQUAL(Name(health), expected);
  }
}

PODWIRE_TEST(TakesTheHealthOfStream1) {
  ExpectHealth({kSettings, kHeaders, kServing}, "serving");
  ExpectHealth({kSettings, kHeaders, kServing, kEnd, "more"}, "serving");
  ExpectHealth({kSettings, kHeaders, kNotServing}, "not serving");
  ExpectHealth({kSettings, kHeaders, kUnknown}, "not serving");
  ExpectHealth({kSettings, kHeaders}, "incomplete");
}

PODWIRE_TEST(SkipsFramesOfOtherStreamsAndPadding) {
  const std::string_view ping("\0\0\x08\x06\0\0\0\0\0"
                              "12345678",
                              17);
  const std::string_view other("\0\0\x07\0\0\0\0\0\x03\0\0\0\0\x02\x08\x02", 16);
  const std::string_view padded("\0\0\x0A\0\x08\0\0\0\x01\x02\0\0\0\0\x02\x08\x01\0\0", 19);
  ExpectHealth({kSettings, ping, other, kHeaders, kServing}, "serving");
  ExpectHealth({kSettings, kHeaders, padded}, "serving");
}

PODWIRE_TEST(TakesAMessageInTwoFrames) {
  const std::string_view first("\0\0\x05\0\0\0\0\0\x01\0\0\0\0\x02", 14);
  const std::string_view second("\0\0\x02\0\0\0\0\0\x01\x08\x01", 11);
  ExpectHealth({kSettings, kHeaders, first, second}, "serving");
}

PODWIRE_TEST(NoticesACallWithoutAHealth) {
  ExpectHealth({kSettings, kEnd}, "no status");
  ExpectHealth({kSettings, std::string_view("\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08", 13)}, "no status");
  ExpectHealth({kSettings, std::string_view("\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0", 17)}, "no status");
}

PODWIRE_TEST(RefusesWhatIsNotHttp2) {
  ExpectHealth({"HTTP/1.1 400 Bad Request\r\n"}, "other protocol");
  ExpectHealth({"HTTP/2"}, "incomplete");
  ExpectHealth({"SSH-2.0-OpenSSH"}, "malformed");
  ExpectHealth({kHeaders, kServing}, "malformed");
  // A frame, a message and a padding that are too long; a compressed message.
  ExpectHealth({kSettings, std::string_view("\x01\0\0\0\0\0\0\0\x01", 9)}, "malformed");
  ExpectHealth({kSettings, std::string_view("\0\0\x05\0\0\0\0\0\x01\0\xFF\xFF\xFF\xFF", 14)}, "malformed");
  ExpectHealth({kSettings, std::string_view("\0\0\x01\0\x08\0\0\0\x01\x05", 10)}, "malformed");
  ExpectHealth({kSettings, std::string_view("\0\0\x05\0\0\0\0\0\x01\x01\0\0\0\x02", 14)}, "malformed");
}

PODWIRE_TEST(EndsWithAnAnswerThatDoesNot) {
  HealthParser parser;
  Health health = Health::kIncomplete;
  std::size_t bytes = 0;
  for (; health == Health::kIncomplete; bytes += kSettings.size()) health = parser.Feed(kSettings);
  EXPECT_EQUAL(Name(health), "malformed");
  EXPECT_TRUE(bytes < kMaxProbeAnswerBytes + 2 * kSettings.size());
}

}  // namespace
}  // namespace podwire
