#include "text/json_scan.h"

#include "check.h"

namespace podwire {
namespace {

// The outcome and, for a string, its value, in one text.
Buffer Find(std::string_view json) {
  Buffer value;
  switch (FindTopLevelString(json, "socket", value)) {
    case Lookup::kMalformed:
      return Concat({"malformed"});
    case Lookup::kNoObject:
      return Concat({"no object"});
    case Lookup::kAbsent:
      return Concat({"absent"});
    case Lookup::kOtherType:
      return Concat({"other type"});
    case Lookup::kString:
      return Concat({"string ", value.View()});
  }
  return {};
}

struct Example {
  std::string_view json;
  std::string_view found;
};

void ExpectAll(std::initializer_list<Example> examples) {
  for (const Example& example : examples) EXPECT_EQUAL(Find(example.json).View(), example.found);
}

PODWIRE_TEST(FindsTheKeyAtTheTopOnly) {
  ExpectAll({
      {R"({"socket":"/a"})", "string /a"},
      {" \t\r\n{ \"a\" : [ ] , \"socket\" : \"/a\" } \n", "string /a"},
      {R"({"ipam":{"socket":"/inner"},"list":[{"socket":"/inner"}]})", "absent"},
      {R"({"ipam":{"socket":"/inner"},"socket":"/outer","x":{"socket":"/inner"}})", "string /outer"},
      {R"([{"socket":"/a"}])", "no object"},
      {R"({"a":"socket","b":"\"socket\":\"/a\""})", "absent"},
      {R"({"a":"{\"socket\":\"/a\"}"})", "absent"},
      {R"({"Socket":"/a","sockets":"/b","socke":"/c","":"/d"})", "absent"},
      {R"({})", "absent"},
      {R"([])", "no object"},
      {R"("socket")", "no object"},
      {R"(5)", "no object"},
      {" null ", "no object"},
  });
}

PODWIRE_TEST(FindsAnEmptyKeyAtTheTopOnly) {
  Buffer value;
  EXPECT_TRUE(FindTopLevelString(R"({"a":{"b":"c","":"d"}})", "", value) == Lookup::kAbsent);
  EXPECT_TRUE(FindTopLevelString(R"({"a":{"b":"c"},"":"d"})", "", value) == Lookup::kString);
  EXPECT_EQUAL(value.View(), "d");
}

PODWIRE_TEST(TakesTheLastOfDuplicateKeys) {
  ExpectAll({
      {R"({"socket":"/a","socket":"/b"})", "string /b"},
      {R"({"socket":"/a","socket":null})", "other type"},
      {R"({"socket":{"socket":"/a"}})", "other type"},
      {R"({"socket":[],"socket":"/b"})", "string /b"},
      {R"({"socket":"/long/path","socket":""})", "string "},
  });
}

PODWIRE_TEST(DecodesEscapesInKeysAndValues) {
  ExpectAll({
      {R"({"\u0073ocket":"/a"})", "string /a"},
      {R"({"socket":"\"\\\/\b\f\n\r\t"})", "string \"\\/\b\f\n\r\t"},
      {R"({"socket":"\u00e9\u20AC\uD83D\uDE00"})", "string \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {R"({"socket":"\ud83d!"})", "string \xEF\xBF\xBD!"},
      {R"({"socket":"\ude00\ud83d\u0041"})",
       "string \xEF\xBF\xBD\xEF\xBF\xBD"
       "A"},
      {R"({"socket":"\ud83d\n"})", "string \xEF\xBF\xBD\n"},
      {"{\"socket\":\"\xC3\xA9\xFF\"}", "string \xC3\xA9\xFF"},
  });
  Buffer value;
  EXPECT_TRUE(FindTopLevelString(R"({"socket":"/a\u0000b"})", "socket", value) == Lookup::kString);
  EXPECT_EQUAL(value.View(), std::string_view("/a\0b", 4));
}

PODWIRE_TEST(AcceptsEveryKindOfValue) {
  ExpectAll({
      {R"({"a":[0,-0,10,-1.5,1e9,1E-9,2.5e+3,true,false,null,"",{},[]],"socket":"/a"})", "string /a"},
      {R"({"socket":0})", "other type"},
      {R"({"socket":true})", "other type"},
      {R"({"socket":{}})", "other type"},
  });
}

PODWIRE_TEST(RefusesWhatIsNotJson) {
  constexpr std::string_view kMalformed[] = {
      "",
      " ",
      "{",
      "}",
      "{]",
      "[}",
      "[1",
      "[1,]",
      "[,1]",
      R"({"socket":"/a"} x)",
      R"({"socket":"/a"}{})",
      R"({"socket":"/a",})",
      R"({"socket":"/a")",
      R"({"socket":"/a)",
      R"({"socket" "/a"})",
      R"({"socket":})",
      R"({socket:"/a"})",
      R"({'socket':'/a'})",
      R"({"socket":"/a" "b":1})",
      R"({1:2})",
      R"({"a":01,"socket":"/a"})",
      R"({"a":+1})",
      R"({"a":.5})",
      R"({"a":1.})",
      R"({"a":1e})",
      R"({"a":-})",
      R"({"a":NaN})",
      R"({"a":tru})",
      R"({"a":truex})",
      R"({"a":"\x"})",
      R"({"a":"\u12g4"})",
      R"({"a":"\ud83d\u12"})",
      R"({"a":"\)",
      "{\"a\":\"\n\"}",
      "{\"a\":\"\x01\"}",
      "\xEF\xBB\xBF{}",
      R"({"a":1}/**/)",
      R"({"socket":"/a"}])",
      R"({,})",
      R"({"a"})",
  };
  for (const std::string_view json : kMalformed)
    EXPECT_EQUAL(Concat({json, " -> ", Find(json).View()}).View(), Concat({json, " -> malformed"}).View());
  EXPECT_EQUAL(Find(std::string_view("{}\0", 3)).View(), "malformed");
  EXPECT_EQUAL(Find(std::string_view("{\"a\":\"\0\"}", 9)).View(), "malformed");
}

PODWIRE_TEST(NestingCostsNoStack) {
  Buffer json = Concat({R"({"socket":"/a","deep":)"});
  constexpr int kDepth = 1 << 20;
  for (int level = 0; level < kDepth; ++level) json.Append('[');
  for (int level = 0; level < kDepth; ++level) json.Append(']');
  EXPECT_EQUAL(Find(json.View()).View(), "malformed");
  json.Append('}');
  EXPECT_EQUAL(Find(json.View()).View(), "string /a");
}

PODWIRE_TEST(TellsObjectsFromOtherJson) {
  for (const std::string_view json : {"{}", R"( {"code":7} )", R"({"":1})"}) EXPECT_TRUE(IsJsonObject(json));
  for (const std::string_view json : {"", "[]", "null", "{", "{}x", "\"{}\""}) EXPECT_TRUE(!IsJsonObject(json));
}

}  // namespace
}  // namespace podwire
