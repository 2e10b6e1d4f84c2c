#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "message/reader.h"
#include "netfilter/set_element.h"

namespace podwire::netlink {

struct TableName {
  // NFPROTO_*.
  uint8_t family = 0;
  std::string name;
};

// A transaction that changed watched tables.
struct TableTransaction {
  Generation generation;
  // NFT_MSG_* of linux/netfilter/nf_tables.h that the kernel announced, for each watched table; empty for one that the
  // transaction did not change.
  std::vector<std::set<uint16_t>> kinds;
};

// Groups the notifications of nf_tables into transactions, and leaves out changes of other tables.
class TableWatch {
 public:
  explicit TableWatch(std::vector<TableName> tables) : tables_(std::move(tables)), kinds_(tables_.size()) {}

  // The transaction that the message ends, if it changed a watched table.
  std::optional<TableTransaction> Take(const Message& message);

  // Whether a message could not be read, since the last call.
  bool TakeMalformed() { return std::exchange(malformed_, false); }

 private:
  std::optional<TableTransaction> End(ByteView payload);

  std::vector<TableName> tables_;
  std::vector<std::set<uint16_t>> kinds_;
  bool malformed_ = false;
};

}  // namespace podwire::netlink
