#include "netfilter/set_field.h"

#include <linux/if.h>
#include <linux/netfilter/nf_tables.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include "object/ip_address.h"

namespace podwire::netlink {

namespace {

using Bytes = std::vector<uint8_t>;

struct TypeTraits {
  const char* name;
  size_t size;
};

// In the order of FieldType.
constexpr std::array<TypeTraits, 5> kTypes = {
    {{"ifname", IFNAMSIZ}, {"ipv4_addr", 4}, {"ipv6_addr", 16}, {"inet_proto", 1}, {"inet_service", 2}}};

struct VerdictName {
  const char* name;
  int32_t code;
};

// NF_* of linux/netfilter.h and NFT_* of linux/netfilter/nf_tables.h.
constexpr std::array<VerdictName, 6> kVerdicts = {{{"drop", 0},
                                                   {"accept", 1},
                                                   {"continue", NFT_CONTINUE},
                                                   {"jump", NFT_JUMP},
                                                   {"goto", NFT_GOTO},
                                                   {"return", NFT_RETURN}}};

// Fields of a concatenation begin at registers of 32 bits.
constexpr size_t kRegisterBytes = 4;
constexpr unsigned kByteBits = 8;

const TypeTraits& TraitsOf(FieldType type) { return kTypes[static_cast<size_t>(type)]; }
bool IsAddress(FieldType type) { return type == FieldType::kIpv4Addr || type == FieldType::kIpv6Addr; }

size_t SizeIn(const std::vector<FieldType>& fields, FieldType type) {
  const size_t size = TraitsOf(type).size;
  return fields.size() == 1 ? size : (size + kRegisterBytes - 1) / kRegisterBytes * kRegisterBytes;
}

std::optional<uint64_t> ParseNumber(const std::string& text, uint64_t max) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > max) return std::nullopt;
  return number;
}

std::optional<Bytes> ParseValue(FieldType type, const std::string& text) {
  const size_t size = TraitsOf(type).size;
  Bytes bytes(size, 0);
  if (type == FieldType::kIfname) {
    if (text.empty() || text.size() >= size) return std::nullopt;
    std::copy(text.begin(), text.end(), bytes.begin());
    return bytes;
  }
  if (IsAddress(type)) {
    const auto address = IpAddress::Parse(text);
    if (!address || address->View().size != size) return std::nullopt;
    std::copy_n(address->bytes.begin(), size, bytes.begin());
    return bytes;
  }
  const auto number = ParseNumber(text, (uint64_t{1} << (kByteBits * size)) - 1);
  if (!number) return std::nullopt;
  for (size_t at = 0; at < size; ++at) {
    bytes[size - 1 - at] = static_cast<uint8_t>(*number >> (kByteBits * at));
  }
  return bytes;
}

// The first and the last value; the same for one value.
struct Interval {
  Bytes first;
  Bytes last;
};

// Sets or clears the bits behind a prefix.
Bytes WithHostBits(Bytes bytes, uint64_t length, bool set) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    const uint64_t before = at * kByteBits;
    const uint64_t kept = length <= before ? 0 : std::min<uint64_t>(length - before, kByteBits);
    const auto host = static_cast<uint8_t>(0xff >> kept);
    bytes[at] = static_cast<uint8_t>(set ? bytes[at] | host : bytes[at] & ~host);
  }
  return bytes;
}

std::optional<Interval> ParseField(FieldType type, const std::string& text, bool intervals) {
  if (text.find('\0') != std::string::npos) return std::nullopt;
  const size_t slash = intervals && IsAddress(type) ? text.find('/') : std::string::npos;
  const size_t dash = intervals && type != FieldType::kIfname ? text.find('-') : std::string::npos;
  if (slash != std::string::npos) {
    const auto address = ParseValue(type, text.substr(0, slash));
    const auto length = ParseNumber(text.substr(slash + 1), kByteBits * TraitsOf(type).size);
    if (!address || !length || WithHostBits(*address, *length, false) != *address) return std::nullopt;
    return Interval{*address, WithHostBits(*address, *length, true)};
  }
  const auto first = ParseValue(type, text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : ParseValue(type, text.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return Interval{*first, *last};
}

// The first wrong field; nothing when each is of its type.
std::optional<WrongField> ParseFields(const std::string& name, const std::vector<FieldType>& types,
                                      const std::vector<std::string>& texts, bool intervals, Interval& whole) {
  if (texts.size() != types.size()) return WrongField{name, "a list of " + std::to_string(types.size()) + " fields"};
  for (size_t at = 0; at < types.size(); ++at) {
    const auto field = ParseField(types[at], texts[at], intervals);
    if (!field) {
      const std::string expected = std::string("of the type ") + TraitsOf(types[at]).name;
      return WrongField{name + "[" + std::to_string(at) + "]", expected + (intervals ? ", or an interval of it" : "")};
    }
    const size_t size = SizeIn(types, types[at]);
    for (const auto& [from, to] : {std::pair(&field->first, &whole.first), std::pair(&field->last, &whole.last)}) {
      to->insert(to->end(), from->begin(), from->end());
      to->resize(to->size() + size - from->size());
    }
  }
  return std::nullopt;
}

// The next key; nothing behind the last one.
std::optional<Bytes> Behind(Bytes key) {
  for (auto byte = key.rbegin(); byte != key.rend(); ++byte) {
    if (++*byte != 0) return key;
  }
  return std::nullopt;
}

}  // namespace

std::optional<FieldType> FieldTypeOf(const std::string& name) {
  for (size_t at = 0; at < kTypes.size(); ++at) {
    if (name == kTypes[at].name) return static_cast<FieldType>(at);
  }
  return std::nullopt;
}

std::optional<WrongField> AppendElement(const SetType& type, const TypedElement& element,
                                        std::vector<SetElement>& elements) {
  Interval key;
  Interval data;
  if (auto wrong = ParseFields("key", type.key, element.key, type.intervals, key)) return wrong;
  if (auto wrong = ParseFields("data", type.data, element.data, false, data)) return wrong;
  const bool concatenated = type.key.size() > 1;
  auto& first = elements.emplace_back();
  first.key = std::move(key.first);
  if (type.intervals && concatenated) first.key_end = key.last;
  if (!type.data.empty()) first.value = std::move(data.first);
  first.verdict = element.verdict;
  auto behind = type.intervals && !concatenated ? Behind(std::move(key.last)) : std::nullopt;
  if (behind) {
    auto& end = elements.emplace_back();
    end.key = std::move(behind);
    end.flags = NFT_SET_ELEM_INTERVAL_END;
  }
  return std::nullopt;
}

namespace {

// Takes the texts up to the next zero bytes; fails when there is none.
class TextReader {
 public:
  explicit TextReader(const std::string& text) : text_(text) {}

  std::string Next() {
    const size_t end = text_.find('\0', at_);
    if (end == std::string::npos) {
      failed_ = true;
      return {};
    }
    const size_t begin = std::exchange(at_, end + 1);
    return text_.substr(begin, end - begin);
  }

  std::vector<std::string> Next(size_t count) {
    std::vector<std::string> texts(count);
    for (auto& text : texts) text = Next();
    return texts;
  }

  // Nothing where both texts are empty.
  std::optional<Verdict> NextVerdict() {
    const auto name = Next();
    const auto chain = Next();
    if (name.empty()) return std::nullopt;
    for (const auto& known : kVerdicts) {
      if (name == known.name) return Verdict{known.code, chain.empty() ? std::nullopt : std::optional(chain)};
    }
    failed_ = true;
    return std::nullopt;
  }

  bool Failed() const { return failed_; }
  bool Ended() const { return at_ == text_.size(); }

 private:
  const std::string& text_;
  size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace

std::optional<std::vector<TypedElement>> SplitElements(const SetType& type, const std::string& text) {
  std::vector<TypedElement> elements;
  TextReader reader(text);
  while (!reader.Ended()) {
    auto& element = elements.emplace_back();
    element.key = reader.Next(type.key.size());
    element.data = reader.Next(type.data.size());
    element.verdict = reader.NextVerdict();
    if (reader.Failed()) return std::nullopt;
  }
  return elements;
}

}  // namespace podwire::netlink
