#include "socket/socket.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace podwire::netlink {

namespace {

// The kernel's own limit for one datagram of a list is 32 KiB.
constexpr size_t kReceiveBufferBytes = 64 * 1024;
// Asked for; the kernel counts its overhead too and gives twice that.
constexpr int kSocketBufferBytes = 4 * 1024 * 1024;
// The longest answer there is, a link with everything in it, with the kernel's overhead.
constexpr size_t kAnswerBytesMax = 8 * 1024;
constexpr int kDumpAttempts = 5;
// For each answer of a list.
constexpr Socket::Timeout kAnswerTimeout{5000};

void EncodeRequest(const Request& request, uint32_t sequence, MessageWriter& writer) {
  writer.Begin(request.type, static_cast<uint16_t>(request.flags | NLM_F_REQUEST | NLM_F_ACK), sequence);
  std::visit([&](const auto& object) { Encode(object, writer); }, request.object);
  writer.End();
}

// How many answers the receive buffer holds for certain.
size_t AnswersThatFit(int fd) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) != 0) return 1;
  return std::max(static_cast<size_t>(bytes) / kAnswerBytesMax, size_t{1});
}

void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

}  // namespace

std::optional<KernelError> Refusal(const std::optional<Acknowledgement>& acknowledgement) {
  if (!acknowledgement) return KernelError{EBADMSG, "malformed acknowledgement"};
  if (acknowledgement->error == 0) return std::nullopt;
  return KernelError{acknowledgement->error, acknowledgement->text.value_or("")};
}

Result<Socket> Socket::Open(int protocol) {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
  if (!fd) return KernelError{errno, "cannot open a netlink socket"};
  // None of these is needed to be right: without them errors have no text, and answers are longer.
  SetOption(fd.Get(), SOL_NETLINK, NETLINK_EXT_ACK, 1);
  SetOption(fd.Get(), SOL_NETLINK, NETLINK_CAP_ACK, 1);
  SetOption(fd.Get(), SOL_SOCKET, SO_SNDBUFFORCE, kSocketBufferBytes);
  SetOption(fd.Get(), SOL_SOCKET, SO_RCVBUFFORCE, kSocketBufferBytes);
  // Without this one the kernel takes no notice of a filter and answers with everything.
  const int strict = 1;
  if (setsockopt(fd.Get(), SOL_NETLINK, NETLINK_GET_STRICT_CHK, &strict, sizeof strict) != 0) {
    return KernelError{errno, "the kernel cannot filter lists (needs Linux 4.20)"};
  }
  Socket socket(std::move(fd));
  socket.together_max_ = AnswersThatFit(socket.fd_.Get());
  return socket;
}

std::optional<KernelError> Socket::Send(const MessageWriter& writer) {
  const auto& bytes = writer.Bytes();
  ssize_t sent = 0;
  do {
    sent = ::send(fd_.Get(), bytes.data(), bytes.size(), 0);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return KernelError{errno, "cannot send to the kernel"};
  return std::nullopt;
}

Result<ByteView> Socket::Receive(Timeout timeout) {
  // Answers are mostly there already; polling first would double the calls.
  if (!buffer_) buffer_.reset(new uint8_t[kReceiveBufferBytes]);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const ssize_t size = recv(fd_.Get(), buffer_.get(), kReceiveBufferBytes, MSG_DONTWAIT | MSG_TRUNC);
    if (size > static_cast<ssize_t>(kReceiveBufferBytes)) return KernelError{EMSGSIZE, "an answer is too long"};
    if (size >= 0) return ByteView{buffer_.get(), static_cast<size_t>(size)};
    if (errno == ENOBUFS) return KernelError{ENOBUFS, "the kernel dropped answers"};
    if (errno != EAGAIN && errno != EINTR) return KernelError{errno, "cannot receive from the kernel"};
    const auto left = std::chrono::duration_cast<Timeout>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return KernelError{ETIMEDOUT, ""};
    pollfd waiting{fd_.Get(), POLLIN, 0};
    poll(&waiting, 1, static_cast<int>(left.count()));
  }
}

std::vector<Reply> Socket::Exchange(const std::vector<Request>& requests, Timeout timeout) {
  std::vector<Reply> replies(requests.size());
  std::optional<KernelError> failure;
  for (size_t begin = 0; begin < requests.size(); begin += together_max_) {
    const size_t count = std::min(together_max_, requests.size() - begin);
    if (!failure) {
      failure = ExchangeTogether(&requests[begin], &replies[begin], count, timeout);
    } else {
      for (size_t position = begin; position < begin + count; ++position) replies[position].error = *failure;
    }
  }
  return replies;
}

Reply Socket::Exchange(const Request& request, Timeout timeout) {
  Reply reply;
  ExchangeTogether(&request, &reply, 1, timeout);
  return reply;
}

uint32_t Socket::TakeSequences(size_t count) {
  const uint32_t first = sequence_;
  sequence_ += static_cast<uint32_t>(count);
  return first;
}

std::optional<KernelError> Socket::Converse(const MessageWriter& writer,
                                            const std::function<bool(const Message&)>& take, Timeout timeout) {
  if (auto failure = Send(writer)) return failure;
  for (;;) {
    auto received = Receive(timeout);
    if (!received) return received.Error();
    MessageReader reader(*received);
    bool done = false;
    while (const auto message = reader.Next()) done = take(*message) || done;
    if (done) return std::nullopt;
  }
}

std::optional<KernelError> Socket::ExchangeTogether(const Request* requests, Reply* replies, size_t count,
                                                    Timeout timeout) {
  const uint32_t first = TakeSequences(count);
  MessageWriter writer;
  for (size_t position = 0; position < count; ++position) {
    EncodeRequest(requests[position], first + static_cast<uint32_t>(position), writer);
  }
  std::vector<bool> answered(count, false);
  size_t missing = count;
  const auto take = [&](const Message& message) {
    // Unsigned arithmetic, so this holds across the wrap-around of the sequence.
    const uint32_t position = message.sequence - first;
    if (position >= count || answered[position]) return false;
    if (message.type == RTM_NEWLINK) replies[position].link = DecodeLink(message.payload);
    if (message.type == RTM_NEWQDISC) replies[position].qdisc = DecodeQdisc(message.payload);
    if (message.type != NLMSG_ERROR) return false;
    replies[position].error = Refusal(DecodeAcknowledgement(message));
    answered[position] = true;
    return --missing == 0;
  };
  auto failure = Converse(writer, take, timeout);
  for (size_t position = 0; failure && position < count; ++position) {
    if (!answered[position]) replies[position].error = *failure;
  }
  return failure;
}

Result<uint32_t> Socket::LookUp(const std::string& name, Timeout timeout) {
  const auto reply = Exchange(GetLink(0, name), timeout);
  if (reply.error) return *reply.error;
  if (!reply.link) return KernelError{EBADMSG, "malformed answer"};
  return static_cast<uint32_t>(reply.link->header.ifi_index);
}

Result<Socket::DumpEnd> Socket::DumpOnce(const DumpRequest& request, const DumpSink& sink, Deadline deadline) {
  const uint32_t sequence = TakeSequences(1);
  MessageWriter writer;
  writer.Begin(request.type, NLM_F_REQUEST | NLM_F_DUMP, sequence);
  std::visit([&](const auto& filter) { Encode(filter, writer); }, request.filter);
  writer.End();
  if (const auto failure = Send(writer)) return *failure;

  has_unread_list_ = true;
  bool interrupted = false;
  uint32_t count = 0;
  for (;;) {
    const auto left = std::chrono::duration_cast<Timeout>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return KernelError{ETIMEDOUT, "the list took too long"};
    auto received = Receive(std::min(left, kAnswerTimeout));
    if (!received) return received.Error();
    MessageReader reader(*received);
    while (const auto message = reader.Next()) {
      if (message->sequence != sequence) continue;
      interrupted = interrupted || (message->flags & NLM_F_DUMP_INTR) != 0;
      if (message->type == NLMSG_ERROR) {
        has_unread_list_ = false;
        return Refusal(DecodeAcknowledgement(*message)).value_or(KernelError{EBADMSG, "a list was acknowledged"});
      }
      if (message->type == NLMSG_DONE) {
        has_unread_list_ = false;
        if (auto refused = Refusal(DecodeListEnd(*message))) return *refused;
        return interrupted ? DumpEnd::kInterrupted : DumpEnd::kComplete;
      }
      if (request.max_count != 0 && ++count > request.max_count) {
        return KernelError{E2BIG, "more than " + std::to_string(request.max_count) + " in the list"};
      }
      sink.take(*message);
    }
    if (reader.Malformed()) return KernelError{EBADMSG, "malformed list"};
  }
}

std::optional<KernelError> Socket::Dump(const DumpRequest& request, const DumpSink& sink) {
  const auto is_timed = request.timeout.count() != 0;
  const auto deadline = is_timed ? std::chrono::steady_clock::now() + request.timeout : Deadline::max();
  for (int attempt = 0; attempt < kDumpAttempts; ++attempt) {
    sink.restart();
    auto end = DumpOnce(request, sink, deadline);
    if (!end) return end.Error();
    if (*end == DumpEnd::kComplete) return std::nullopt;
  }
  return KernelError{EINTR, "the list changed while it was read"};
}

}  // namespace podwire::netlink
