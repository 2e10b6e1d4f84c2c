#pragma once

#include <cstdio>
#include <string>

namespace podwire::netlink::test {

inline int checks = 0;
inline int failures = 0;

// Counts checks, and prints failed ones. For one thread.
inline void Check(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

}  // namespace podwire::netlink::test
