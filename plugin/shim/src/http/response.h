// Incremental parser of an HTTP/1.1 response (RFC 9112).
#pragma once

#include <cstddef>
#include <string_view>

#include "text/buffer.h"

namespace podwire {

// Strict where leniency could pass a broken answer off as a whole one: a response must say where its body ends, by its
// Content-Length. A body that ends when the connection does is refused, because one cut short would look the same.
// Chunks are refused, because podwire-node sends none. Interim (1xx) responses are skipped.
class ResponseParser {
 public:
  enum class State { kIncomplete, kComplete, kMalformed };

  // How the bytes are cut into calls makes no difference. Bytes after the response's end are ignored.
  State Feed(std::string_view bytes);

  int Status() const { return status_; }                  // valid once complete
  std::string_view Body() const { return body_.View(); }  // valid once complete
  std::string_view Fault() const { return fault_; }       // why it is malformed

 private:
  enum class Part { kHeadLine, kBytes, kEnd, kFault };

  void TakeLine(std::string_view bytes, std::size_t& at);
  void TakeBodyBytes(std::string_view bytes, std::size_t& at);
  void EndLine();
  void ReadStatusLine(std::string_view line);
  void ReadHeader(std::string_view line);
  void EndHead();
  void Refuse(std::string_view fault);

  Part part_ = Part::kHeadLine;
  Buffer line_;
  std::size_t line_bytes_ = 0;  // of the head
  int status_ = 0;              // 0 until the status line is read
  bool has_length_ = false;
  std::size_t length_ = 0;     // Content-Length
  std::size_t remaining_ = 0;  // of the body
  Buffer body_;
  std::string_view fault_;
};

}  // namespace podwire
