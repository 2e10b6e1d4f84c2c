#include "text/json_scan.h"

#include <cstdint>

#include "text/utf8.h"

namespace podwire {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Walks a document without recursion: 4 MiB of "[" must cost memory, not the stack.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view key, Buffer& value) : text_(text), wanted_key_(key), value_(value) {}

  Lookup Run();

 private:
  enum class Step { kValueFollows, kValueEnded, kEnd, kFault };

  Step EnterValue();
  Step LeaveValue();
  bool ScanKey();
  bool ScanScalar();
  bool ScanString(Buffer* decoded);
  bool ScanEscape(Buffer* decoded);
  bool ScanUnicodeEscape(Buffer* decoded);
  bool ScanHex4(std::uint32_t& unit);
  bool ScanNumber();
  bool ScanDigits();
  bool ScanWord(std::string_view word);

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char expected);
  void SkipSpace();
  bool IsAtTop() const { return enclosing_.Size() == 1; }
  char Innermost() const { return enclosing_.View().back(); }
  char Closing() const { return Innermost() == '{' ? '}' : ']'; }

  std::string_view text_;
  std::string_view wanted_key_;
  Buffer& value_;
  std::size_t at_ = 0;
  Buffer enclosing_;  // the opening brackets around the current position, outermost first
  Buffer key_;
  bool is_wanted_ = false;  // the value that follows belongs to the wanted key
  Lookup found_ = Lookup::kNoObject;
};

Lookup Scanner::Run() {
  for (;;) {
    Step step = EnterValue();
    while (step == Step::kValueEnded) step = LeaveValue();
    if (step == Step::kEnd) return found_;
    if (step == Step::kFault) return Lookup::kMalformed;
  }
}

// Takes a scalar, or opens a container and goes up to its first value. An empty container stays open: to LeaveValue it
// looks like one whose last value has just ended.
Scanner::Step Scanner::EnterValue() {
  SkipSpace();
  const char first = Peek();
  if (is_wanted_) {
    value_.Clear();
    found_ = first == '"' ? Lookup::kString : Lookup::kOtherType;
  }
  if (first != '{' && first != '[') {
    const bool is_scalar = ScanScalar();
    is_wanted_ = false;
    return is_scalar ? Step::kValueEnded : Step::kFault;
  }
  is_wanted_ = false;
  if (first == '{' && enclosing_.Size() == 0) found_ = Lookup::kAbsent;
  enclosing_.Append(first);
  ++at_;
  SkipSpace();
  if (Peek() == Closing()) return Step::kValueEnded;
  if (first == '[' || ScanKey()) return Step::kValueFollows;
  return Step::kFault;
}

Scanner::Step Scanner::LeaveValue() {
  SkipSpace();
  if (enclosing_.Size() == 0) return at_ == text_.size() ? Step::kEnd : Step::kFault;
  if (Take(Closing())) {
    enclosing_.RemoveLast();
    return Step::kValueEnded;
  }
  if (!Take(',')) return Step::kFault;
  if (Innermost() == '{' && !ScanKey()) return Step::kFault;
  return Step::kValueFollows;
}

bool Scanner::ScanKey() {
  SkipSpace();
  key_.Clear();
  if (!ScanString(IsAtTop() ? &key_ : nullptr)) return false;
  is_wanted_ = IsAtTop() && key_.View() == wanted_key_;
  SkipSpace();
  return Take(':');
}

bool Scanner::ScanScalar() {
  switch (Peek()) {
    case '"':
      return ScanString(is_wanted_ ? &value_ : nullptr);
    case 't':
      return ScanWord("true");
    case 'f':
      return ScanWord("false");
    case 'n':
      return ScanWord("null");
    default:
      return ScanNumber();
  }
}

bool Scanner::ScanString(Buffer* decoded) {
  if (!Take('"')) return false;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return true;
    if (static_cast<unsigned char>(c) < 0x20) return false;
    if (c == '\\') {
      if (!ScanEscape(decoded)) return false;
    } else if (decoded != nullptr) {
      decoded->Append(c);
    }
  }
  return false;
}

bool Scanner::ScanEscape(Buffer* decoded) {
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  if (Take('u')) return ScanUnicodeEscape(decoded);
  const std::size_t index = at_ < text_.size() ? kEscapes.find(text_[at_]) : kEscapes.npos;
  if (index == kEscapes.npos) return false;
  ++at_;
  if (decoded != nullptr) decoded->Append(kMeanings[index]);
  return true;
}

// The grammar allows half a surrogate pair, UTF-8 does not: it becomes the replacement character.
bool Scanner::ScanUnicodeEscape(Buffer* decoded) {
  std::uint32_t code_point = 0;
  if (!ScanHex4(code_point)) return false;
  if (code_point >= 0xD800 && code_point <= 0xDFFF) {
    const std::size_t after_first = at_;
    std::uint32_t low = 0;
    const bool is_pair =
        code_point < 0xDC00 && Take('\\') && Take('u') && ScanHex4(low) && low >= 0xDC00 && low <= 0xDFFF;
    // An escape that is not a second half is scanned again, on its own.
    if (!is_pair) at_ = after_first;
    code_point = is_pair ? 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00) : kReplacementCharacter;
  }
  if (decoded != nullptr) AppendUtf8(*decoded, code_point);
  return true;
}

bool Scanner::ScanHex4(std::uint32_t& unit) {
  unit = 0;
  for (int digit = 0; digit < 4; ++digit) {
    const char c = Peek();
    unsigned value = 0;
    if (IsDigit(c)) {
      value = static_cast<unsigned>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      value = static_cast<unsigned>((c | 0x20) - 'a') + 10;
    } else {
      return false;
    }
    unit = unit * 16 + value;
    ++at_;
  }
  return true;
}

bool Scanner::ScanNumber() {
  Take('-');
  if (!Take('0') && !ScanDigits()) return false;
  if (Take('.') && !ScanDigits()) return false;
  if (Take('e') || Take('E')) {
    if (!Take('+')) Take('-');
    return ScanDigits();
  }
  return true;
}

bool Scanner::ScanDigits() {
  const std::size_t start = at_;
  while (IsDigit(Peek())) ++at_;
  return at_ > start;
}

bool Scanner::ScanWord(std::string_view word) {
  for (const char c : word) {
    if (!Take(c)) return false;
  }
  return true;
}

bool Scanner::Take(char expected) {
  if (at_ >= text_.size() || text_[at_] != expected) return false;
  ++at_;
  return true;
}

void Scanner::SkipSpace() {
  while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') ++at_;
}

}  // namespace

Lookup FindTopLevelString(std::string_view json, std::string_view key, Buffer& value) {
  value.Clear();
  const Lookup found = Scanner(json, key, value).Run();
  if (found != Lookup::kString) value.Clear();
  return found;
}

bool IsJsonObject(std::string_view json) {
  Buffer unused;
  const Lookup found = FindTopLevelString(json, "", unused);
  return found != Lookup::kMalformed && found != Lookup::kNoObject;
}

}  // namespace podwire
