#include "probe/health_parser.h"

#include <algorithm>

#include "protocol.h"

namespace podwire {
namespace {

constexpr std::string_view kHttp1 = "HTTP/1.";
constexpr std::size_t kFrameHeadBytes = 9;
// The largest frame without another SETTINGS_MAX_FRAME_SIZE.
constexpr std::size_t kMaxFrameBytes = 16384;
// Compression flag and length of a gRPC message.
constexpr std::size_t kMessageHeadBytes = 5;
// A health status has 2 bytes.
constexpr std::size_t kMaxMessageBytes = 64;

constexpr unsigned kData = 0x0;
constexpr unsigned kHeaders = 0x1;
constexpr unsigned kResetStream = 0x3;
constexpr unsigned kSettings = 0x4;
constexpr unsigned kGoAway = 0x7;
constexpr unsigned kEndStream = 0x1;
constexpr unsigned kEndHeaders = 0x4;
constexpr unsigned kPadded = 0x8;
constexpr unsigned kStream = 1;

// HealthCheckResponse.status is field 1, a varint: UNKNOWN 0, SERVING 1, NOT_SERVING 2.
constexpr char kStatusTag = 0x08;
constexpr char kServing = 1;

unsigned Byte(std::string_view bytes, std::size_t at) { return static_cast<unsigned char>(bytes[at]); }

unsigned Number(std::string_view bytes, std::size_t at, std::size_t count) {
  unsigned number = 0;
  for (std::size_t i = 0; i < count; ++i) number = number << 8 | Byte(bytes, at + i);
  return number;
}

void AppendFrame(Buffer& out, unsigned type, unsigned flags, std::string_view payload, unsigned stream) {
  const auto size = static_cast<unsigned>(payload.size());
  for (const unsigned byte : {size >> 16, size >> 8, size, type, flags, 0u, 0u, 0u, stream}) {
    out.Append(static_cast<char>(byte & 0xFF));
  }
  out.Append(payload);
}

// HPACK, RFC 7541: a literal that is not indexed, its text shorter than 127 bytes and not compressed.
void AppendText(Buffer& block, std::string_view text) {
  block.Append(static_cast<char>(text.size()));
  block.Append(text);
}

Health StatusOf(std::string_view message) {
  // An absent field is UNKNOWN.
  const bool is_serving = message.size() >= 2 && message[0] == kStatusTag && message[1] == kServing;
  return is_serving ? Health::kServing : Health::kNotServing;
}

}  // namespace

Buffer HealthRequest() {
  Buffer block;
  block.Append("\x83\x86");  // :method POST, :scheme http
  block.Append('\x04');      // :path
  AppendText(block, "/grpc.health.v1.Health/Check");
  block.Append('\x01');  // :authority
  AppendText(block, "localhost");
  block.Append("\x0F\x10");  // content-type, entry 31 of the static table
  AppendText(block, "application/grpc");
  block.Append('\0');
  AppendText(block, "te");
  AppendText(block, "trailers");

  Buffer request = Concat({"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"});
  AppendFrame(request, kSettings, 0, {}, 0);
  AppendFrame(request, kHeaders, kEndHeaders, block.View(), kStream);
  AppendFrame(request, kData, kEndStream, std::string_view("\0\0\0\0\0", kMessageHeadBytes), kStream);
  return request;
}

Health HealthParser::Feed(std::string_view bytes) {
  if (health_ != Health::kIncomplete) return health_;
  bytes_.Append(bytes);
  health_ = TakeBytes();
  if (health_ == Health::kIncomplete && bytes_.Size() > kMaxProbeAnswerBytes) health_ = Health::kMalformed;
  return health_;
}

Health HealthParser::TakeBytes() {
  const std::string_view all = bytes_.View();
  if (at_ == 0) {
    const std::size_t known = std::min(all.size(), kHttp1.size());
    const bool may_be_http1 = std::equal(kHttp1.begin(), kHttp1.begin() + known, all.begin());
    if (may_be_http1) return known == kHttp1.size() ? Health::kOtherProtocol : Health::kIncomplete;
  }
  while (all.size() - at_ >= kFrameHeadBytes) {
    const unsigned size = Number(all, at_, 3);
    if (size > kMaxFrameBytes) return Health::kMalformed;
    const unsigned type = Byte(all, at_ + 3);
    // A server begins with its SETTINGS.
    if (at_ == 0 && type != kSettings) return Health::kMalformed;
    if (all.size() - at_ - kFrameHeadBytes < size) break;
    const Frame frame = {type, Byte(all, at_ + 4), Number(all, at_ + 5, 4) & 0x7FFFFFFF,
                         {all.data() + at_ + kFrameHeadBytes, size}};
    at_ += kFrameHeadBytes + size;
    const Health health = TakeFrame(frame);
    if (health != Health::kIncomplete) return health;
  }
  return Health::kIncomplete;
}

Health HealthParser::TakeFrame(const Frame& frame) {
  if (frame.type == kGoAway) return Health::kNoStatus;
  if (frame.stream != kStream) return Health::kIncomplete;
  Health health = Health::kIncomplete;
  if (frame.type == kResetStream) return Health::kNoStatus;
  if (frame.type == kData) {
    std::string_view data = frame.payload;
    if ((frame.flags & kPadded) != 0) {
      if (data.empty() || Byte(data, 0) >= data.size()) return Health::kMalformed;
      data = {data.data() + 1, data.size() - 1 - Byte(data, 0)};
    }
    health = TakeData(data);
  }
  const bool is_end = (frame.type == kData || frame.type == kHeaders) && (frame.flags & kEndStream) != 0;
  return health == Health::kIncomplete && is_end ? Health::kNoStatus : health;
}

Health HealthParser::TakeData(std::string_view data) {
  if (message_.Size() + data.size() > kMaxMessageBytes) return Health::kMalformed;
  message_.Append(data);
  const std::string_view message = message_.View();
  if (message.size() < kMessageHeadBytes) return Health::kIncomplete;
  // The client offered no compression.
  if (message[0] != 0) return Health::kMalformed;
  const unsigned size = Number(message, 1, 4);
  if (size > kMaxMessageBytes) return Health::kMalformed;
  if (message.size() - kMessageHeadBytes < size) return Health::kIncomplete;
  return StatusOf({message.data() + kMessageHeadBytes, size});
}

}  // namespace podwire
