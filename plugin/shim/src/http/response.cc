#include "http/response.h"

#include <utility>

#include "protocol.h"

namespace podwire {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

bool EqualsIgnoringCase(std::string_view text, std::string_view lower_case) {
  if (text.size() != lower_case.size()) return false;
  for (std::size_t index = 0; index < text.size(); ++index) {
    if (Lower(text[index]) != lower_case[index]) return false;
  }
  return true;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Refuses a sign, a space, and a text without digits. A number above `limit` stays above it, so it cannot wrap around.
bool ParseDecimal(std::string_view text, std::size_t limit, std::size_t& value) {
  value = 0;
  for (const char c : text) {
    if (!IsDigit(c)) return false;
    if (value <= limit) value = value * 10 + static_cast<std::size_t>(c - '0');
  }
  return !text.empty();
}

constexpr std::string_view kNotHttp = "it is not HTTP/1.1";
constexpr std::string_view kBodyTooLarge = "its body is larger than 4 MiB";

// Whether `line` may still become a status line: a peer that speaks something else is known by its first bytes, not
// only when it falls silent.
bool IsStatusLinePrefix(std::string_view line) {
  constexpr std::string_view kProtocol = "HTTP/1.";
  for (std::size_t index = 0; index < line.size() && index < kProtocol.size(); ++index) {
    if (line[index] != kProtocol[index]) return false;
  }
  return true;
}

}  // namespace

ResponseParser::State ResponseParser::Feed(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size() && part_ != Part::kEnd && part_ != Part::kFault) {
    if (part_ == Part::kBytes) {
      TakeBodyBytes(bytes, at);
    } else {
      TakeLine(bytes, at);
    }
  }
  if (part_ == Part::kEnd) return State::kComplete;
  return part_ == Part::kFault ? State::kMalformed : State::kIncomplete;
}

void ResponseParser::TakeBodyBytes(std::string_view bytes, std::size_t& at) {
  const std::size_t available = bytes.size() - at;
  const std::size_t count = available < remaining_ ? available : remaining_;
  body_.Append({bytes.data() + at, count});
  at += count;
  remaining_ -= count;
  if (remaining_ == 0) part_ = Part::kEnd;
}

void ResponseParser::TakeLine(std::string_view bytes, std::size_t& at) {
  const char c = bytes[at++];
  if (++line_bytes_ > kMaxAnswerHeadBytes) return Refuse("its headers are larger than 16 KiB");
  line_.Append(c);
  if (status_ == 0 && !IsStatusLinePrefix(line_.View())) return Refuse(kNotHttp);
  if (c == '\n') EndLine();
}

void ResponseParser::EndLine() {
  const Buffer ended = std::move(line_);
  std::string_view line = ended.View();
  line.remove_suffix(1);
  if (line.empty() || line.back() != '\r') return Refuse("a line of its head does not end in CR LF");
  line.remove_suffix(1);
  if (status_ == 0) return ReadStatusLine(line);
  if (line.empty()) return EndHead();
  ReadHeader(line);
}

void ResponseParser::ReadStatusLine(std::string_view line) {
  constexpr std::size_t kVersionBytes = 8;  // "HTTP/1.1"
  std::size_t status = 0;
  const bool is_well_formed = line.size() >= kVersionBytes + 4 && (line[7] == '0' || line[7] == '1') &&
                              line[kVersionBytes] == ' ' &&
                              ParseDecimal({line.data() + kVersionBytes + 1, 3}, 999, status) && status >= 100 &&
                              (line.size() == kVersionBytes + 4 || line[kVersionBytes + 4] == ' ');
  if (!is_well_formed) return Refuse(kNotHttp);
  status_ = static_cast<int>(status);
}

void ResponseParser::ReadHeader(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || colon == 0 || line.front() == ' ' || line.front() == '\t') {
    return Refuse("its head holds a line that is no header");
  }
  const std::string_view name(line.data(), colon);
  const std::string_view value = Trim({line.data() + colon + 1, line.size() - colon - 1});
  if (EqualsIgnoringCase(name, "transfer-encoding")) return Refuse("it has a Transfer-Encoding");
  if (!EqualsIgnoringCase(name, "content-length")) return;
  if (has_length_ || !ParseDecimal(value, kMaxAnswerBytes, length_)) return Refuse("its Content-Length is malformed");
  has_length_ = true;
}

void ResponseParser::EndHead() {
  if (status_ < 200) {
    status_ = 0;
    has_length_ = false;
    return;
  }
  if (status_ == 204 || status_ == 304) {
    part_ = Part::kEnd;  // RFC 9112, 6.3: never has a body, regardless of its headers
    return;
  }
  if (!has_length_) return Refuse("it does not say where its body ends");
  if (length_ > kMaxAnswerBytes) return Refuse(kBodyTooLarge);
  remaining_ = length_;
  part_ = remaining_ == 0 ? Part::kEnd : Part::kBytes;
}

void ResponseParser::Refuse(std::string_view fault) {
  part_ = Part::kFault;
  fault_ = fault;
}

}  // namespace podwire
