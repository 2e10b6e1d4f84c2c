// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/buffer.h"

namespace podwire {

inline constexpr std::uint32_t kReplacementCharacter = 0xFFFD;

// The length of the well-formed sequence that `text` begins with, 1 to 4; 0 when it begins with none.
std::size_t Utf8SequenceLength(std::string_view text);

void AppendUtf8(Buffer& text, std::uint32_t code_point);

}  // namespace podwire
