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
  std::optional<uint64_t> timeout_ms = std::nullopt;
  std::optional<uint64_t> expiration_ms = std::nullopt;
};

// A field that is not of its type: its path, such as `key[1]`, and what it must be.
struct WrongField {
  std::string path;
  std::string expected;
};

// Appends the element as the kernel takes it: one, or the two ends of an interval. Nothing is wrong: it is appended.
std::optional<WrongField> AppendElement(const SetType& type, const TypedElement& element,
                                        std::vector<SetElement>& elements);

// The elements of a list, the ends of intervals put together; in the order of keys where the set has such. Nothing when
// a key or value has not the length of the type.
std::optional<std::vector<TypedElement>> TypedElements(const SetType& type, std::vector<SetElement> elements);

// Elements as one text, which takes the event loop a fraction of the time of as many objects. Each element has the
// fields of its key and of its data, the verdict's name, its chain, timeout and remaining time in ms; an absent part is
// empty. Every part ends with a zero byte. Nothing when the text is malformed.
std::optional<std::vector<TypedElement>> SplitElements(const SetType& type, const std::string& text);
std::string JoinElements(const std::vector<TypedElement>& elements);

}  // namespace podwire::netlink
