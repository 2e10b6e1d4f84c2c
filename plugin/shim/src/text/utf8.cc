#include "text/utf8.h"

namespace podwire {
namespace {

struct LeadByte {
  unsigned char first, last;             // range of the first byte
  std::size_t length;                    // of the whole sequence
  unsigned char second_min, second_max;  // the second byte's range excludes overlong forms and surrogates
};

// The Unicode standard, table 3-7.
constexpr LeadByte kLeadBytes[] = {
    {0x00, 0x7F, 1, 0, 0},       {0xC2, 0xDF, 2, 0x80, 0xBF}, {0xE0, 0xE0, 3, 0xA0, 0xBF},
    {0xE1, 0xEC, 3, 0x80, 0xBF}, {0xED, 0xED, 3, 0x80, 0x9F}, {0xEE, 0xEF, 3, 0x80, 0xBF},
    {0xF0, 0xF0, 4, 0x90, 0xBF}, {0xF1, 0xF3, 4, 0x80, 0xBF}, {0xF4, 0xF4, 4, 0x80, 0x8F},
};

}  // namespace

std::size_t Utf8SequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  for (const LeadByte& lead : kLeadBytes) {
    if (byte(0) < lead.first || byte(0) > lead.last) continue;
    if (text.size() < lead.length) return 0;
    if (lead.length > 1 && (byte(1) < lead.second_min || byte(1) > lead.second_max)) return 0;
    for (std::size_t index = 2; index < lead.length; ++index) {
      if (byte(index) < 0x80 || byte(index) > 0xBF) return 0;
    }
    return lead.length;
  }
  return 0;
}

void AppendUtf8(Buffer& text, std::uint32_t code_point) {
  const auto continuation = [&text, code_point](unsigned shift) {
    text.Append(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  };
  if (code_point < 0x80) {
    text.Append(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    text.Append(static_cast<char>(0xC0 | (code_point >> 6)));
    continuation(0);
  } else if (code_point < 0x10000) {
    text.Append(static_cast<char>(0xE0 | (code_point >> 12)));
    continuation(6);
    continuation(0);
  } else {
    text.Append(static_cast<char>(0xF0 | (code_point >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace podwire
