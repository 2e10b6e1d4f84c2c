// The codec against the recorded messages of `ip` and the kernel (captures/), under sanitizers.
//
// usage: codec FOLDER   prints one line per check that failed; exit code 1 when there is any, or nothing was checked
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "decode_any.h"
#include "netfilter/conntrack.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace podwire::netlink;
using test::Check;
using Bytes = std::vector<uint8_t>;

constexpr unsigned kSeed = 20;
constexpr int kDamagesPerCapture = 500;

// A file of captures/, by its path there: the datagram, and the expected values of its messages.
struct Capture {
  std::string name;
  Bytes bytes;
  std::vector<std::string> expected;
};

Capture Load(const std::filesystem::path& path) {
  Capture capture{(path.parent_path().filename() / path.stem()).string(), {}, {}};
  std::ifstream file(path);
  const std::string marker = "# expect ";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(marker, 0) == 0) capture.expected.push_back(line.substr(marker.size()));
    if (line.empty() || line[0] == '#') continue;
    for (size_t position = 0; position + 1 < line.size(); position += 2) {
      capture.bytes.push_back(static_cast<uint8_t>(std::stoul(line.substr(position, 2), nullptr, 16)));
    }
  }
  return capture;
}

ByteView View(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

// Netlink header, family header and attributes separately; the attributes sorted, as their order has no meaning.
std::vector<Bytes> Parts(const Bytes& message, size_t header_size) {
  const size_t start = sizeof(nlmsghdr) + header_size;
  std::vector<Bytes> attributes;
  AttributeReader reader({message.data() + start, message.size() - start});
  while (const auto attribute = reader.Next()) {
    const auto& [data, size] = attribute->payload;
    Bytes part(sizeof attribute->raw_type);
    std::memcpy(part.data(), &attribute->raw_type, sizeof attribute->raw_type);
    part.insert(part.end(), data, data + size);
    attributes.push_back(part);
  }
  std::sort(attributes.begin(), attributes.end());
  attributes.emplace_back(message.begin(), message.begin() + static_cast<Bytes::difference_type>(start));
  return attributes;
}

// ifinfomsg, ifaddrmsg, rtmsg, ndmsg, fib_rule_hdr, tcmsg by message type: four types to each object, from 16 on.
size_t HeaderSize(uint16_t type) {
  constexpr size_t kSizes[] = {16, 8, 12, 12, 12, 20};
  return kSizes[(type - 16) / 4];
}

// The codec writes only the identity of a conntrack entry, as the kernel sent it.
bool IsPart(const Bytes& written, const Bytes& sent) {
  constexpr size_t kHeader = sizeof(nfgenmsg);
  const auto part = Parts(written, kHeader);
  const auto whole = Parts(sent, kHeader);
  // The last one holds the headers, which include the length.
  return part.size() > 1 && std::all_of(part.begin(), part.end() - 1, [&](const Bytes& attribute) {
           return std::find(whole.begin(), whole.end(), attribute) != whole.end();
         });
}

// Objects of rtnetlink keep everything.
bool IsKeptWhole(const Message& message) { return message.type >= RTM_BASE && message.type <= RTM_GETQDISC; }

// A request of `ip` is written byte for byte; of the kernel's answer every attribute is.
void CheckMessage(const Capture& capture, const Message& message, const Bytes& original, size_t position) {
  // Sender's port and flags for which the writer has no field.
  Bytes sent = original;
  const auto decoded = test::DecodeAny(message);
  const std::string where = capture.name + " message " + std::to_string(position);
  Check(decoded.has_value(), where + ": cannot be read");
  if (!decoded) return;
  std::memset(sent.data() + offsetof(nlmsghdr, nlmsg_pid), 0, sizeof(uint32_t));
  const bool request = capture.name.find("/request-") != std::string::npos;
  bool same = true;
  if (request) {
    same = decoded->encoded == sent;
  } else if (IsKeptWhole(message)) {
    const size_t header = HeaderSize(message.type);
    same = Parts(decoded->encoded, header) == Parts(sent, header);
  } else if (message.type == (NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW)) {
    same = IsPart(decoded->encoded, sent);
  }
  Check(same, where + ": is written differently");
  const bool expected = position < capture.expected.size();
  Check(expected && capture.expected[position] == decoded->text, where + ": # expect " + decoded->text);
}

void CheckCapture(const Capture& capture) {
  MessageReader reader(View(capture.bytes));
  size_t position = 0;
  size_t offset = 0;
  while (const auto message = reader.Next()) {
    const size_t length = sizeof(nlmsghdr) + message->payload.size;
    const auto begin = capture.bytes.begin() + static_cast<Bytes::difference_type>(offset);
    if (message->type != NLMSG_DONE) {
      CheckMessage(capture, *message, Bytes(begin, begin + static_cast<Bytes::difference_type>(length)), position++);
    }
    offset += NLMSG_ALIGN(length);
  }
  Check(!reader.Malformed(), capture.name + ": is malformed");
  Check(position == capture.expected.size(), capture.name + ": has another number of messages than it should");
}

// An unknown attribute after the first message's own attributes is kept.
void CheckUnknownSurvives(const Capture& capture) {
  const Bytes unknown = {0x07, 0x00, 0xfe, 0x3f, 'o', 'd', 'd', 0x00};
  uint32_t length = 0;
  std::memcpy(&length, capture.bytes.data(), sizeof length);
  Bytes bytes(capture.bytes.begin(), capture.bytes.begin() + length);
  bytes.insert(bytes.end(), unknown.begin(), unknown.end());
  length = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  MessageReader reader(View(bytes));
  const auto message = reader.Next();
  if (message && !IsKeptWhole(*message)) return;
  const auto decoded = message ? test::DecodeAny(*message) : std::nullopt;
  const bool kept = decoded && std::search(decoded->encoded.begin(), decoded->encoded.end(), unknown.begin(),
                                           unknown.end()) != decoded->encoded.end();
  Check(kept, capture.name + ": an unknown attribute is lost");
}

// The answer of an old kernel, which ignores filters, is filtered here: the flow of `ping 127.0.0.1`.
void CheckConntrackFilters(const Capture& capture) {
  MessageReader reader(View(capture.bytes));
  const auto message = reader.Next();
  const auto entry = message ? DecodeConntrack(message->payload) : std::nullopt;
  Check(entry.has_value(), capture.name + ": cannot be read");
  if (!entry) return;
  const auto matching = [&](const ConntrackFilter& filter) {
    const auto parts = ByPlace(filter);
    return std::count_if(parts.begin(), parts.end(), [&](const auto& part) { return Matches(*entry, part); });
  };
  const auto own = IpAddress::Parse("127.0.0.1");
  const auto other = IpAddress::Parse("127.0.0.2");
  Check(matching({AF_INET}) == 1, "a filter without fields");
  Check(matching({AF_INET, own}) == 1, "an address in several places counts once");
  Check(matching({AF_INET, own, IPPROTO_ICMP}) == 1, "an address and a protocol");
  Check(matching({AF_INET, other}) == 0, "another address");
  Check(matching({AF_INET, own, IPPROTO_UDP}) == 0, "another protocol");
  Check(matching({AF_INET, own, IPPROTO_ICMP, {53}}) == 0, "a port where there is none");
}

// An entry as JavaScript gets it and gives it back, also cut off anywhere.
void CheckPacked(const Capture& capture) {
  MessageReader reader(View(capture.bytes));
  const auto message = reader.Next();
  const auto entry = message ? DecodeConntrack(message->payload) : std::nullopt;
  Check(entry.has_value(), capture.name + ": cannot be read");
  if (!entry) return;
  const Bytes packed = Pack({*entry, *entry});
  const auto unpacked = Unpack(View(packed));
  Check(unpacked && unpacked->size() == 2, "two entries are packed");
  if (!unpacked) return;
  MessageWriter sent;
  MessageWriter returned;
  Encode(*entry, sent);
  Encode(unpacked->back(), returned);
  Check(sent.Bytes() == returned.Bytes(), "a packed entry keeps its family and its identity");
  for (size_t size = 1; size < packed.size(); ++size) {
    const Bytes cut(packed.begin(), packed.begin() + static_cast<Bytes::difference_type>(size));
    Check(Unpack(View(cut)).has_value() == (size == packed.size() / 2), "a cut entry");
  }
}

// Cut off anywhere and with wrong bytes: the sanitizers and the fuzz entry's own conditions decide.
void Damage(const Capture& capture, std::mt19937& random) {
  for (size_t size = 0; size <= capture.bytes.size(); ++size) {
    // A copy of exactly this size, so that one byte too far is seen.
    const Bytes cut(capture.bytes.begin(), capture.bytes.begin() + static_cast<Bytes::difference_type>(size));
    LLVMFuzzerTestOneInput(cut.data(), cut.size());
  }
  for (int round = 0; round < kDamagesPerCapture; ++round) {
    Bytes damaged = capture.bytes;
    const unsigned count = 1 + random() % 4;
    for (unsigned change = 0; change < count; ++change) {
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    }
    LLVMFuzzerTestOneInput(damaged.data(), damaged.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: codec FOLDER\n");
    return 2;
  }
  std::mt19937 random(kSeed);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[1])) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    const auto capture = Load(file);
    CheckCapture(capture);
    CheckUnknownSurvives(capture);
    if (capture.name == "conntrack/reply-list-ipv4") CheckConntrackFilters(capture);
    if (capture.name.rfind("conntrack/reply-list", 0) == 0) CheckPacked(capture);
    Damage(capture, random);
  }
  std::printf("%zu captures, %d checks, %d failed, damage seed %u\n", files.size(), test::checks, test::failures,
              kSeed);
  return test::checks > 0 && test::failures == 0 ? 0 : 1;
}
