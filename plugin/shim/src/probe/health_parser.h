// Incremental reader of a gRPC server's answer to one Health/Check (HTTP/2, RFC 9113).
#pragma once

#include <cstddef>
#include <string_view>

#include "text/buffer.h"

namespace podwire {

// What the server said. kNoStatus: it ended the call without a health status, for which HPACK would have to be decoded;
// kOtherProtocol: it speaks HTTP/1.
enum class Health { kIncomplete, kServing, kNotServing, kNoStatus, kOtherProtocol, kMalformed };

// Reads frames of stream 1 up to the health status. It needs no HPACK: the status is in a DATA frame. Bounded by
// kMaxProbeAnswerBytes.
class HealthParser {
 public:
  // How the bytes are cut into calls makes no difference. Bytes after the status are ignored.
  Health Feed(std::string_view bytes);

 private:
  struct Frame {
    unsigned type;
    unsigned flags;
    unsigned stream;
    std::string_view payload;
  };

  Health TakeBytes();
  Health TakeFrame(const Frame& frame);
  Health TakeData(std::string_view data);

  Health health_ = Health::kIncomplete;
  Buffer bytes_;
  std::size_t at_ = 0;  // of the first frame that is not read yet
  Buffer message_;      // the gRPC message, with its prefix
};

// Everything that the client sends: preface, SETTINGS, HEADERS and an empty request.
Buffer HealthRequest();

}  // namespace podwire
