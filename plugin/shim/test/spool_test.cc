#include "spool.h"

#include "check.h"

namespace podwire {
namespace {

Buffer NameOf(const char* const* entries, std::string_view configuration) {
  const auto attachment = AttachmentOf(Environment(entries), configuration);
  return attachment ? SpoolName(*attachment) : Concat({"none"});
}

// plugin/spool/spool-directory.test.ts expects the same name.
PODWIRE_TEST(NamesTheFileOfAnAttachment) {
  const char* const entries[] = {"CNI_CONTAINERID=c0ffee", "CNI_IFNAME=eth0", nullptr};
  EXPECT_EQUAL(NameOf(entries, R"({"name":"net"})").View(), "net,c0ffee,eth0.del");
  EXPECT_EQUAL(NameOf(entries, R"({"name":"old","x":{"name":"y"},"n\u0061me":"net"})").View(), "net,c0ffee,eth0.del");
}

PODWIRE_TEST(NamesNoFileWithoutAnAttachment) {
  const char* const entries[] = {"CNI_CONTAINERID=c0ffee", "CNI_IFNAME=eth0", nullptr};
  for (const std::string_view configuration :
       {R"({"name":5})", R"({"name":""})", R"({"name":"a/b"})", R"({"name":"a,b"})", R"({"name":"a\u0000"})", R"({})",
        R"([{"name":"net"}])", "{"}) {
    EXPECT_EQUAL(NameOf(entries, configuration).View(), "none");
  }
  const char* const no_interface[] = {"CNI_CONTAINERID=c0ffee", "CNI_IFNAME=", nullptr};
  EXPECT_EQUAL(NameOf(no_interface, R"({"name":"net"})").View(), "none");
  const char* const path[] = {"CNI_CONTAINERID=../c0ffee", "CNI_IFNAME=eth0", nullptr};
  EXPECT_EQUAL(NameOf(path, R"({"name":"net"})").View(), "none");
}

}  // namespace
}  // namespace podwire
