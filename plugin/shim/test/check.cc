#include "check.h"

#include <cstdio>
#include <vector>

namespace podwire::test {
namespace {

struct Test {
  std::string_view name;
  Body body;
};

std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

int failures = 0;

void PrintText(const char* label, std::string_view text) {
  std::printf("  %s: %.*s\n", label, static_cast<int>(text.size()), text.data());
}

}  // namespace

Registration::Registration(std::string_view name, Body body) { Tests().push_back({name, body}); }

void ExpectEqual(const Place& place, std::string_view actual, std::string_view expected) {
  if (actual == expected) return;
  ++failures;
  std::printf("%s:%d: not equal\n", place.file, place.line);
  PrintText("actual  ", actual);
  PrintText("expected", expected);
}

void ExpectTrue(const Place& place, bool condition, std::string_view text) {
  if (condition) return;
  ++failures;
  std::printf("%s:%d: not true\n", place.file, place.line);
  PrintText("condition", text);
}

int RunAll() {
  for (const Test& test : Tests()) {
    const int before = failures;
    test.body();
    if (failures != before) std::printf("FAILED %.*s\n", static_cast<int>(test.name.size()), test.name.data());
  }
  std::printf("shim: %zu unit tests, %d failed expectations\n", Tests().size(), failures);
  return failures == 0 && !Tests().empty() ? 0 : 1;
}

}  // namespace podwire::test

int main() { return podwire::test::RunAll(); }
