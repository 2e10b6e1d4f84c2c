// The seeds of libFuzzer and random mutations of them; libFuzzer itself runs longer, with a compiler that has it.
#include <dirent.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace podwire {
namespace {

constexpr char kSeeds[] = "test/seeds";
constexpr int kRoundsOfEachSeed = 2000;
constexpr int kMaxEdits = 4;

// The same numbers each time, so that a failure can be reproduced.
using Chance = std::mt19937;

std::size_t Below(std::size_t limit, Chance& chance) { return chance() % limit; }

std::vector<std::string> ReadSeeds() {
  std::vector<std::string> seeds;
  DIR* const folder = opendir(kSeeds);
  if (folder == nullptr) return seeds;
  while (const dirent* const entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(std::string(kSeeds) + "/" + entry->d_name, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  closedir(folder);
  std::sort(seeds.begin(), seeds.end());
  return seeds;
}

void Edit(std::string& text, const std::string& other, Chance& chance) {
  const std::size_t at = Below(text.size() + 1, chance);
  const auto byte = static_cast<char>(chance());
  switch (Below(5, chance)) {
    case 0:
      if (at < text.size()) text[at] = byte;
      break;
    case 1:
      text.insert(at, Below(64, chance), byte);
      break;
    case 2:
      text.erase(at, Below(16, chance));
      break;
    case 3:
      text.insert(at, other, Below(other.size(), chance));
      break;
    default:
      text.insert(at, "\r\n");
  }
}

void Try(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

PODWIRE_TEST(BearsTheSeedsAndWhatBecomesOfThem) {
  const std::vector<std::string> seeds = ReadSeeds();
  EXPECT_TRUE(seeds.size() >= 3);
  Chance chance;
  for (const std::string& seed : seeds) {
    Try(seed);
    for (int round = 0; round < kRoundsOfEachSeed; ++round) {
      std::string text = seed;
      for (std::size_t edits = 1 + Below(kMaxEdits, chance); edits > 0; --edits) {
        Edit(text, seeds[Below(seeds.size(), chance)], chance);
      }
      Try(text);
    }
  }
}

}  // namespace
}  // namespace podwire
