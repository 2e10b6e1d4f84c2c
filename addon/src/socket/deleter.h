#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "socket/netns.h"
#include "socket/result.h"

namespace podwire::netlink {

struct Deletion {
  uint64_t id = 0;
  // Selects by index, or by name when that is not empty.
  uint32_t index = 0;
  std::string name;
};

// The kernel's acknowledgement of a deletion.
struct DeletionResult {
  uint64_t id = 0;
  std::optional<KernelError> error;
};

// Deletes links on dedicated threads.
//
// Difficulties:
// - The kernel holds the sender of RTM_DELLINK inside `sendmsg` for an RCU barrier, 13 to 40 ms, though the link is
//   gone after 0.5 ms. libuv's pool has four threads for everything; so there are up to four dedicated ones, started on
//   demand.
// - A barrier costs the same for one link and for many. So a free thread takes the whole queue: it puts the links into
//   a separate interface group and deletes the group, in one send. A group number is random, never 0 and not small, so
//   that no existing link has it, and no link is in a group before the send that deletes it.
// - The kernel refuses to delete a whole group when one of its links cannot be deleted, so only veths are put into one,
//   and a refused group is deleted link by link.
// - No caller may wait 40 ms for a thread to end, so threads are never joined: they share the state, finish the queue
//   and exit. The addon is linked with `-z nodelete`, as the end of a worker thread would otherwise unload their code.
class Deleter {
 public:
  static Result<std::unique_ptr<Deleter>> Open(std::shared_ptr<const Netns> netns);
  // Submitted deletions are still carried out.
  ~Deleter();
  Deleter(const Deleter&) = delete;
  Deleter& operator=(const Deleter&) = delete;

  // The thread that takes them deletes them together.
  void Submit(std::vector<Deletion> deletions);

  // Readable when there are results.
  int EventFd() const;
  std::vector<DeletionResult> TakeResults();

 private:
  struct Shared;
  explicit Deleter(std::shared_ptr<Shared> shared);
  static void RunThread(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace podwire::netlink
