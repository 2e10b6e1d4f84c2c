#include "error_document.h"

#include "check.h"
#include "text/json_scan.h"

namespace podwire {
namespace {

Buffer Quoted(std::string_view text) {
  Buffer json;
  AppendJsonString(json, text);
  return json;
}

Buffer Document(std::string_view configuration) {
  return WriteErrorDocument({CniCode::kTryAgainLater, Concat({"no \"answer\""}), Concat({"wait"})}, configuration);
}

PODWIRE_TEST(EscapesWhatJsonReserves) {
  EXPECT_EQUAL(Quoted("plain").View(), R"("plain")");
  EXPECT_EQUAL(Quoted("\"\\/\n\r\t\b\x1f\x7f").View(), "\"\\\"\\\\/\\n\\r\\t\\u0008\\u001f\x7f\"");
  EXPECT_EQUAL(Quoted(std::string_view("\0", 1)).View(), R"("\u0000")");
}

PODWIRE_TEST(KeepsUtf8AndReplacesEverythingElse) {
  EXPECT_EQUAL(Quoted("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80").View(), "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  EXPECT_EQUAL(Quoted("a\xFF"
                      "b")
                   .View(),
               Concat({"\"a", kReplacement, "b\""}).View());
  EXPECT_EQUAL(Quoted("\xC3").View(), Concat({"\"", kReplacement, "\""}).View());
  EXPECT_EQUAL(Quoted("\xC3\"").View(), Concat({"\"", kReplacement, "\\\"\""}).View());
  for (const std::string_view overlong : {"\xC0\xAF", "\xC1\xBF"}) {
    EXPECT_EQUAL(Quoted(overlong).View(), Concat({"\"", kReplacement, kReplacement, "\""}).View());
  }
  for (const std::string_view bad : {"\xE0\x80\xAF", "\xED\xA0\x80", "\xED\xBF\xBF"}) {
    EXPECT_EQUAL(Quoted(bad).View(), Concat({"\"", kReplacement, kReplacement, kReplacement, "\""}).View());
  }
  for (const std::string_view bad : {"\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
    EXPECT_EQUAL(Quoted(bad).View(),
                 Concat({"\"", kReplacement, kReplacement, kReplacement, kReplacement, "\""}).View());
  }
}

PODWIRE_TEST(EveryPairOfBytesBecomesAJsonString) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second)};
      const Buffer json = Concat({"{\"key\":", Quoted({bytes, 2}).View(), "}"});
      Buffer value;
      EXPECT_TRUE(FindTopLevelString(json.View(), "key", value) == Lookup::kString);
    }
  }
}

PODWIRE_TEST(RepeatsTheConfigurationsVersion) {
  constexpr std::string_view kRest = R"(,"code":11,"msg":"no \"answer\"","details":"wait"})"
                                     "\n";
  const auto expected = [kRest](std::string_view version) {
    return Concat({"{\"cniVersion\":\"", version, "\"", kRest});
  };
  EXPECT_EQUAL(Document(R"({"cniVersion":"0.4.0"})").View(), expected("0.4.0").View());
  for (const std::string_view configuration :
       {"", "{}", "{\"cniVersion\":4}", "{\"cniVersion\":\"\"}", "{\"cniVersion\":\"0.4.0\"",
        "{\"a\":{\"cniVersion\":\"0.4.0\"}}",
        R"({"cniVersion":"0123456789012345678901234567890123456789012345678901234567890123456789"})"}) {
    EXPECT_EQUAL(Document(configuration).View(), expected("1.1.0").View());
  }
}

}  // namespace
}  // namespace podwire
