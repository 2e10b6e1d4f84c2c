#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "netfilter/conntrack.h"
#include "netfilter/set_element.h"
#include "socket/netns.h"
#include "socket/socket.h"

namespace podwire::netlink {

// Elements that are added to one set, or deleted from it. The kernel refuses an element that exists with another value.
struct ElementChange {
  bool deletes = false;
  SetElements list;
};

struct ElementOutcome {
  // ECANCELED: the kernel had no objection, and the transaction failed by another change.
  std::optional<KernelError> error;
  // The position in the change's list of the element that the kernel refused, where it says so.
  std::optional<size_t> element;
};

struct ChangeResult {
  // One for each change, in their order.
  std::vector<ElementOutcome> outcomes;
  // The generation that the transaction made; nothing when it failed or changed nothing.
  std::optional<uint32_t> generation;
};

// nf_tables and connection tracking of a namespace, through a socket that is opened when it is first needed. It is not
// that of rtnetlink, so that neither waits for the other. For one thread at a time.
class Netfilter {
 public:
  explicit Netfilter(std::shared_ptr<const Netns> netns) : netns_(std::move(netns)) {}

  // Makes all changes in one transaction: all of them, or none. An error of its own where the transaction was not
  // judged, or where it is unknown what became of it (ETIMEDOUT, ENOBUFS).
  Result<ChangeResult> ChangeElements(const std::vector<ElementChange>& changes);

  // The current generation of the rules, which every transaction increments.
  Result<uint32_t> ReadGeneration();

  // Deletes entries of connection tracking; how many there were.
  Result<uint32_t> DeleteConntrack(const ConntrackFilter& filter);
  // The same with entries of a list. An entry that was replaced meanwhile by one of the same tuples stays.
  Result<uint32_t> DeleteConntrack(std::vector<ConntrackEntry> entries);

  Result<std::vector<ConntrackEntry>> ListConntrack(const ConntrackEnds& ends);

 private:
  std::optional<KernelError> Connect();
  std::optional<KernelError> Collect(const ConntrackFilter& filter,
                                     const std::function<bool(const ConntrackEntry&)>& matches,
                                     std::vector<ConntrackEntry>& entries);

  std::shared_ptr<const Netns> netns_;
  std::optional<Socket> socket_;
};

}  // namespace podwire::netlink
