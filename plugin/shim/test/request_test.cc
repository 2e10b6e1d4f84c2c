#include "http/request.h"

#include "check.h"
#include "protocol.h"

namespace podwire {
namespace {

template <std::size_t Count>
Buffer Head(const char* const (&entries)[Count]) {
  Buffer head;
  const auto failure = WriteRequestHead({Environment(entries), "podwire", 42, Deadline::In(1000)}, 7, head);
  if (failure) return Concat({Decimal(static_cast<unsigned>(failure->code)), " ", failure->message.View()});
  return head;
}

constexpr std::string_view kFixedPart =
    "POST /cni HTTP/1.1\r\nHost: podwire\r\nConnection: close\r\nContent-Type: application/json\r\n"
    "Content-Length: 7\r\nCNI-Exec-Time: 42\r\nPodwire-Release: 1\r\nCNI-Plugin: podwire\r\n";

PODWIRE_TEST(CarriesEveryVariableAndNoOther) {
  const char* const entries[] = {"PATH=/bin",
                                 "CNI_COMMAND=ADD",
                                 "CNI_CONTAINERID=abc",
                                 "CNI_NETNS=/run/netns/x",
                                 "CNI_NETNS_OVERRIDE=1",
                                 "CNI_IFNAME=eth0",
                                 "CNI_ARGS=A=B;C=D",
                                 "CNI_PATH=/opt/cni/bin",
                                 "TRACEPARENT=00-1-2-01",
                                 "TRACESTATE=k=v",
                                 "BAGGAGE=b=c",
                                 "CNI_SECRET=s",
                                 nullptr};
  EXPECT_EQUAL(
      Head(entries).View(),
      Concat({kFixedPart,
              "CNI-Command: ADD\r\nCNI-ContainerID: abc\r\nCNI-Netns: /run/netns/x\r\nCNI-Netns-Override: 1\r\n"
              "CNI-IfName: eth0\r\nCNI-Args: A=B;C=D\r\nCNI-Path: /opt/cni/bin\r\ntraceparent: 00-1-2-01\r\n"
              "tracestate: k=v\r\nbaggage: b=c\r\n\r\n"})
          .View());
}

PODWIRE_TEST(LeavesOutEmptyAndAbsentVariables) {
  const char* const entries[] = {"CNI_COMMAND=DEL", "CNI_NETNS=", "CNI_ARGSX=x", "CNI_PATH", "", "=", nullptr};
  EXPECT_EQUAL(Head(entries).View(), Concat({kFixedPart, "CNI-Command: DEL\r\n\r\n"}).View());
}

PODWIRE_TEST(SendsNoControlCharacterOfAnyVariable) {
  for (const Variable& variable : kVariables) {
    for (int byte = 1; byte < 256; ++byte) {
      const char control = static_cast<char>(byte);
      const Buffer entry = Concat({variable.name, "=a", {&control, 1}, "b", {"\0", 1}});
      const char* const entries[] = {entry.View().data(), nullptr};
      const Buffer head = Head(entries);
      const bool is_control = byte < 0x20 || byte == 0x7F;
      if (is_control && variable.need == Need::kTrace) {
        EXPECT_EQUAL(head.View(), Concat({kFixedPart, "\r\n"}).View());
      } else if (is_control) {
        EXPECT_EQUAL(head.View(),
                     Concat({"4 the environment variable ", variable.name, " holds a control character"}).View());
      } else {
        EXPECT_EQUAL(head.View(), Concat({kFixedPart, variable.header, ": a", {&control, 1}, "b\r\n\r\n"}).View());
      }
    }
  }
}

PODWIRE_TEST(RefusesSpacesThatHttpWouldDrop) {
  for (const char* const entry : {"CNI_ARGS= a", "CNI_ARGS=a ", "CNI_ARGS= "}) {
    const char* const entries[] = {entry, nullptr};
    EXPECT_EQUAL(Head(entries).View(), "4 the environment variable CNI_ARGS begins or ends with a space");
  }
}

PODWIRE_TEST(LeavesOutTraceContextThatIsTooLong) {
  Buffer entry = Concat({"BAGGAGE="});
  for (std::size_t count = 0; count <= kMaxOptionalBytes; ++count) entry.Append('b');
  entry.Append('\0');
  const char* const entries[] = {"CNI_COMMAND=DEL", entry.View().data(), nullptr};
  EXPECT_EQUAL(Head(entries).View(), Concat({kFixedPart, "CNI-Command: DEL\r\n\r\n"}).View());
}

PODWIRE_TEST(LeavesOutWhatADelWorksWithout) {
  Buffer path = Concat({"CNI_PATH="});
  for (std::size_t count = 0; count <= kMaxOptionalBytes; ++count) path.Append('b');
  path.Append('\0');
  const char* const entries[] = {"CNI_COMMAND=DEL",
                                 "CNI_CONTAINERID=abc",
                                 "CNI_IFNAME=eth0",
                                 "CNI_ARGS=A=B ",
                                 "CNI_NETNS=/run/\n/x",
                                 path.View().data(),
                                 nullptr};
  EXPECT_EQUAL(Head(entries).View(),
               Concat({kFixedPart, "CNI-Command: DEL\r\nCNI-ContainerID: abc\r\nCNI-IfName: eth0\r\n\r\n"}).View());
  const char* const unnamed[] = {"CNI_COMMAND=DEL", "CNI_CONTAINERID=abc ", nullptr};
  EXPECT_EQUAL(Head(unnamed).View(), "4 the environment variable CNI_CONTAINERID begins or ends with a space");
}

PODWIRE_TEST(NamesTheLongestVariableWhenTheHeadIsTooLong) {
  Buffer entry = Concat({"CNI_ARGS="});
  for (std::size_t count = 0; count < kMaxRequestHeadBytes; ++count) entry.Append('b');
  entry.Append('\0');
  const char* const entries[] = {"CNI_COMMAND=ADD", entry.View().data(), nullptr};
  EXPECT_EQUAL(Head(entries).View(),
               "4 the environment variable CNI_ARGS has 15360 bytes, too many: all variables of a CNI call may have "
               "15360 bytes together, with their headers");
}

}  // namespace
}  // namespace podwire
