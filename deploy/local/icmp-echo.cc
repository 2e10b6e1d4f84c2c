// Sends one ICMP echo request (RFC 792) and waits for its reply, where the system has no `ping`.
// usage: icmp-echo ADDRESS      prints "rtt = MILLISECONDS"; exit code 0 when the reply came, 1 otherwise
#include <arpa/inet.h>
#include <netinet/ip_icmp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

constexpr int kTimeoutSeconds = 2;
constexpr int kBytesPerHeaderWord = 4;

uint16_t Checksum(const void* data, size_t size) {
  const auto* words = static_cast<const uint16_t*>(data);
  uint32_t sum = 0;
  for (size_t i = 0; i < size / 2; i++) sum += words[i];
  sum = (sum >> 16) + (sum & 0xffff);
  return static_cast<uint16_t>(~(sum + (sum >> 16)));
}

// Whether a received IPv4 packet is the reply to the request with this id.
bool IsReply(const unsigned char* packet, ssize_t size, uint16_t id) {
  if (size < static_cast<ssize_t>(sizeof(iphdr))) return false;
  const ssize_t header = (packet[0] & 0x0f) * kBytesPerHeaderWord;
  icmphdr icmp{};
  if (size < header + static_cast<ssize_t>(sizeof icmp)) return false;
  std::memcpy(&icmp, packet + header, sizeof icmp);
  return icmp.type == ICMP_ECHOREPLY && icmp.un.echo.id == id;
}

}  // namespace

int main(int argc, char** argv) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (argc != 2 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
    std::fprintf(stderr, "usage: icmp-echo ADDRESS\n");
    return 1;
  }
  const int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
  if (fd < 0) {
    std::perror("icmp-echo: socket");
    return 1;
  }
  const timeval timeout{kTimeoutSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);

  icmphdr request{};
  request.type = ICMP_ECHO;
  request.un.echo.id = htons(static_cast<uint16_t>(getpid()));
  request.checksum = Checksum(&request, sizeof request);
  const auto start = std::chrono::steady_clock::now();
  if (sendto(fd, &request, sizeof request, 0, reinterpret_cast<sockaddr*>(&to), sizeof to) < 0) {
    std::perror("icmp-echo: send");
    return 1;
  }
  const auto deadline = start + std::chrono::seconds(kTimeoutSeconds);
  unsigned char packet[1500];
  while (std::chrono::steady_clock::now() < deadline) {
    const ssize_t size = recv(fd, packet, sizeof packet, 0);
    if (size < 0) break;
    if (!IsReply(packet, size, request.un.echo.id)) continue;
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    std::printf("rtt = %.3f ms\n", elapsed.count());
    return 0;
  }
  std::fprintf(stderr, "icmp-echo: no reply from %s within %d s\n", argv[1], kTimeoutSeconds);
  return 1;
}
