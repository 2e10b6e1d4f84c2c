// The few parts of a test framework that the unit tests need.
#pragma once

#include <string_view>

namespace podwire::test {

using Body = void (*)();

// Registers a test; the runner in check.cc runs all of them.
struct Registration {
  Registration(std::string_view name, Body body);
};

struct Place {
  const char* file;
  int line;
};

void ExpectEqual(const Place& place, std::string_view actual, std::string_view expected);
void ExpectTrue(const Place& place, bool condition, std::string_view text);

}  // namespace podwire::test

#define PODWIRE_TEST(name)                                                        \
  static void name();                                                             \
  static const ::podwire::test::Registration registration_of_##name(#name, name); \
  static void name()

#define EXPECT_EQUAL(actual, expected) ::podwire::test::ExpectEqual({__FILE__, __LINE__}, actual, expected)
#define EXPECT_TRUE(condition) ::podwire::test::ExpectTrue({__FILE__, __LINE__}, condition, #condition)
