#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netfilter/set_element.h"

namespace podwire::netlink {

// The type of a key's or value's field, by nft's name for it. The kernel knows only its length.
enum class FieldType { kIfname, kIpv4Addr, kIpv6Addr, kInetProto, kInetService };

std::optional<FieldType> FieldTypeOf(const std::string& name);

// Types of the elements of a set.
struct SetType {
  std::vector<FieldType> key;
  // Types of a map's values; empty for sets and verdict maps.
  std::vector<FieldType> data;
  // Whether keys are intervals (`flags interval`).
  bool intervals = false;
};

// An element with its fields as text: an interface name, an address, a number; where the set has intervals, also
// `FIRST-LAST` or, of an address, `ADDRESS/LENGTH`.
struct TypedElement {
  std::vector<std::string> key;
  std::vector<std::string> data;
  std::optional<Verdict> verdict = std::nullopt;
};

// A field that is not of its type: its path, such as `key[1]`, and what it must be.
struct WrongField {
  std::string path;
  std::string expected;
};

// Appends the element as the kernel takes it: one, or the two ends of an interval. Nothing is wrong: it is appended.
std::optional<WrongField> AppendElement(const SetType& type, const TypedElement& element,
                                        std::vector<SetElement>& elements);

// Elements as one text, which takes the event loop a fraction of the time of as many objects: the fields of the key and
// of the data of each, the name of its verdict and the verdict's chain (empty: it has none), every one with a zero byte
// behind it. Nothing when the text is malformed.
std::optional<std::vector<TypedElement>> SplitElements(const SetType& type, const std::string& text);

}  // namespace podwire::netlink
