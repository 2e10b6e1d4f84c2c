#include "http/response.h"

#include "check.h"
#include "protocol.h"

namespace podwire {
namespace {

using State = ResponseParser::State;

// Feeds the bytes in pieces, and renders the result as one text.
Buffer Parse(std::string_view bytes, std::size_t piece) {
  ResponseParser parser;
  State state = State::kIncomplete;
  while (!bytes.empty()) {
    const std::size_t count = bytes.size() < piece ? bytes.size() : piece;
    state = parser.Feed({bytes.data(), count});
    bytes.remove_prefix(count);
  }
  if (state == State::kIncomplete) return Concat({"incomplete"});
  if (state == State::kMalformed) return Concat({parser.Fault()});
  return Concat({Decimal(static_cast<unsigned>(parser.Status())), " ", parser.Body()});
}

// The result does not depend on how the bytes are cut.
void ExpectParsed(std::string_view bytes, std::string_view expected) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{7}, bytes.size() + 1}) {
    EXPECT_EQUAL(Parse(bytes, piece).View(), expected);
  }
}

PODWIRE_TEST(TakesABodyByItsLength) {
  ExpectParsed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 hello");
  ExpectParsed("HTTP/1.1 200 OK\r\ncontent-LENGTH:5 \t\r\nDate: x:y\r\n\r\nhello", "200 hello");
  ExpectParsed("HTTP/1.0 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}", "500 {}");
  ExpectParsed("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "200 ");
  ExpectParsed("HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\nxIGNORED", "200 x");
  ExpectParsed("HTTP/1.1 204 No Content\r\n\r\n", "204 ");
}

PODWIRE_TEST(SkipsInterimResponses) {
  ExpectParsed(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n"
      "Content-Length: 2\r\n\r\nok",
      "200 ok");
}

PODWIRE_TEST(KnowsAnswersThatAreCutShort) {
  constexpr std::string_view kWhole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
  for (std::size_t length = 1; length < kWhole.size(); ++length) ExpectParsed({kWhole.data(), length}, "incomplete");
}

PODWIRE_TEST(RefusesWhatIsNotHttp) {
  for (const std::string_view bytes :
       {"garbage", "{}", "H\n", "HTTP/2 200\r\n", "HTTP/1.2 200 OK\r\n", "HTTP/1.1 20 OK\r\n", "HTTP/1.1 099 x\r\n",
        "HTTP/1.1 2000 x\r\n", "HTTP/1.1  200\r\n", "HTTP/1.1\r\n", "HTTP/1.1 +20 x\r\n", "http/1.1 200 OK\r\n",
        "\r\n"}) {
    ExpectParsed(bytes, "it is not HTTP/1.1");
  }
}

PODWIRE_TEST(RefusesAnAmbiguousHead) {
  const auto refused = [](std::string_view headers, std::string_view fault) {
    ExpectParsed(Concat({"HTTP/1.1 200 OK\r\n", headers, "\r\n{}"}).View(), fault);
  };
  refused("", "it does not say where its body ends");
  refused("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "it has a Transfer-Encoding");
  refused("Content-Length: 2\r\nContent-Length: 2\r\n", "its Content-Length is malformed");
  for (const std::string_view length : {"", "-2", "+2", "2,2", "0x2", "2 2"}) {
    refused(Concat({"Content-Length: ", length, "\r\n"}).View(), "its Content-Length is malformed");
  }
  refused("Content-Length: 4194305\r\n", "its body is larger than 4 MiB");
  refused("Content-Length: 18446744073709551618\r\n", "its body is larger than 4 MiB");
  refused("Transfer-Encoding: Chunked\r\n", "it has a Transfer-Encoding");
  refused("Content-Length: 2\r\n folded\r\n", "its head holds a line that is no header");
  refused("no colon\r\n", "its head holds a line that is no header");
  refused(": no name\r\n", "its head holds a line that is no header");
  refused("A: b\nContent-Length: 2\r\n", "a line of its head does not end in CR LF");
}

PODWIRE_TEST(BoundsTheHead) {
  Buffer bytes = Concat({"HTTP/1.1 200 OK\r\nX: "});
  for (std::size_t count = 0; count < kMaxAnswerHeadBytes; ++count) bytes.Append('x');
  ExpectParsed(bytes.View(), "its headers are larger than 16 KiB");
}

}  // namespace
}  // namespace podwire
