#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "object/attribute.h"

namespace podwire::netlink {

// NFTA_DATA_VERDICT: NF_*, or NFT_* of linux/netfilter/nf_tables.h, which are negative.
struct Verdict {
  int32_t code = 0;
  // Target of a jump or goto.
  std::optional<std::string> chain;
};

// An element of a set or map as a message carries it: NFTA_SET_ELEM_* of linux/netfilter/nf_tables.h. Keys and values
// are in network byte order.
struct SetElement {
  std::optional<std::vector<uint8_t>> key;
  // The last key of an interval, in a set of concatenations. Elsewhere an interval has two elements, and the second has
  // the flag NFT_SET_ELEM_INTERVAL_END and the first key after it.
  std::optional<std::vector<uint8_t>> key_end;
  std::optional<std::vector<uint8_t>> value;
  std::optional<Verdict> verdict;
  std::optional<uint32_t> flags;
  // Comments, counters and further attributes that rules and programs attach.
  std::vector<OtherAttribute> unknown_attributes;
};

// A set of nf_tables by name.
struct SetName {
  // NFPROTO_*.
  uint8_t family = 0;
  std::string table;
  std::string set;
};

// NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM: elements of one set.
struct SetElements {
  SetName name;
  std::vector<SetElement> elements;
  std::vector<OtherAttribute> unknown_attributes;
};

void Encode(const SetElements& list, MessageWriter& writer);

// Writes the header, and as many elements from `first` on as one message holds. Appends the position in `writer` of
// each; an error of the kernel names an element by it.
void EncodeElements(const SetElements& list, size_t first, MessageWriter& writer, std::vector<size_t>& positions);

// NFT_MSG_NEWGEN: a transaction ended, and by whom.
struct Generation {
  uint32_t id = 0;
  // ID of the thread, in the initial PID namespace.
  std::optional<uint32_t> process_id;
  std::optional<std::string> process_name;
};

// Nothing when the payload is malformed.
std::optional<Generation> DecodeGeneration(ByteView payload);
void Encode(const Generation& generation, MessageWriter& writer);

}  // namespace podwire::netlink
