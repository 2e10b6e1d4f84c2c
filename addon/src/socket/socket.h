#pragma once

#include <linux/netlink.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "message/reader.h"
#include "message/writer.h"
#include "netfilter/set_element.h"
#include "object/acknowledgement.h"
#include "socket/request.h"
#include "socket/result.h"
#include "socket/unique_fd.h"

namespace podwire::netlink {

// Why the kernel refused; nothing when it did not.
std::optional<KernelError> Refusal(const std::optional<Acknowledgement>& acknowledgement);

// A question for a list.
struct DumpRequest {
  // RTM_GET*.
  uint16_t type = 0;
  std::variant<Link, Address, Route, Rule, Neighbour, ConntrackFilter> filter;
  // Most messages of one attempt; zero for any number. Messages that the caller discards count too.
  uint32_t max_count = 0;
  // For all attempts together; zero for none but that of each answer.
  std::chrono::milliseconds timeout{0};
};

// Takes the messages of a list; `restart` when those taken so far turned out to be inconsistent.
struct DumpSink {
  std::function<void()> restart;
  std::function<void(const Message&)> take;
};

// A socket for kernel requests. Belongs to the namespace in which it was opened, and to one thread at a time.
//
// Difficulties:
// - Answers are matched by sequence number, so late answers to a request that timed out (ETIMEDOUT) are recognised.
// - The kernel processes the messages of one send inside `sendmsg`, all of them in spite of failures; only RTM_DELLINK
//   makes that long.
// - The answers to all messages of a send occupy the receive buffer at once. So a send is limited to the room for its
//   answers; if the buffer still overflows (ENOBUFS), answered requests keep their answers, the remaining ones fail,
//   and nothing more is sent.
// - A list that changed while it was read has NLM_F_DUMP_INTR set in any of its messages, the last one included. `dump`
//   retries a few times, then fails with EINTR; a caller never has an incomplete list.
// - A list of a namespace that an untrusted program fills has any length: `dump` aborts at a limit; the socket then
//   refuses further lists (EBUSY).
class Socket {
 public:
  using Timeout = std::chrono::milliseconds;
  using Deadline = std::chrono::steady_clock::time_point;

  // In the calling thread's namespace. `protocol` is NETLINK_ROUTE or NETLINK_NETFILTER.
  static Result<Socket> Open(int protocol = NETLINK_ROUTE);

  // Sends all, in as few datagrams as the buffers allow; as many replies, in the same order. `timeout` is for each
  // answer.
  std::vector<Reply> Exchange(const std::vector<Request>& requests, Timeout timeout);
  Reply Exchange(const Request& request, Timeout timeout);

  // The index of the link with this name.
  Result<uint32_t> LookUp(const std::string& name, Timeout timeout);

  // Reads a complete list. E2BIG when it is longer than the request allows, ETIMEDOUT when its time is over.
  std::optional<KernelError> Dump(const DumpRequest& request, const DumpSink& sink);

  // Sends what the writer holds, and passes on each message of the answers until `take` returns true.
  std::optional<KernelError> Converse(const MessageWriter& writer, const std::function<bool(const Message&)>& take,
                                      Timeout timeout);
  // The first of `count` sequence numbers, for messages of a conversation.
  uint32_t TakeSequences(size_t count);
  // The messages whose answers the receive buffer holds for certain.
  size_t TogetherMax() const { return together_max_; }

  // Whether a list was given up before its end: the kernel refuses the next one on this socket with EBUSY.
  bool HasUnreadList() const { return has_unread_list_; }

 private:
  enum class DumpEnd { kComplete, kInterrupted };

  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}
  // The error of the exchange itself, if it failed.
  std::optional<KernelError> ExchangeTogether(const Request* requests, Reply* replies, size_t count, Timeout timeout);
  Result<ByteView> Receive(Timeout timeout);
  std::optional<KernelError> Send(const MessageWriter& writer);
  Result<DumpEnd> DumpOnce(const DumpRequest& request, const DumpSink& sink, Deadline deadline);

  UniqueFd fd_;
  uint32_t sequence_ = 0;
  bool has_unread_list_ = false;
  // Requests that may be sent together.
  size_t together_max_ = 1;
  // Not zeroed, so that only used pages cost memory. Made with the first answer.
  std::unique_ptr<uint8_t[]> buffer_;
};

}  // namespace podwire::netlink
