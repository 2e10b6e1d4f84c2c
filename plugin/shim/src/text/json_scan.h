// Reads one key out of a JSON document without building a tree.
#pragma once

#include <string_view>

#include "text/buffer.h"

namespace podwire {

enum class Lookup {
  kMalformed,  // the text is not one JSON value (RFC 8259)
  kNoObject,   // it is one, but no object
  kAbsent,     // the object has no such key
  kOtherType,  // the key's value is not a string
  kString,
};

// Looks for `key` in the object at the top of `json`; `value` holds the decoded string when the answer is kString.
//
// The whole text is checked, so that a broken document never yields a key. Of duplicate keys the last one counts, as in
// JSON.parse and Go: shim, resident plugin and runtime must agree on what a document says. Keys are compared decoded
// ("\u0073ocket" is "socket"). Bytes above 0x7F are taken as they are: encoding is the resident's to judge.
Lookup FindTopLevelString(std::string_view json, std::string_view key, Buffer& value);

bool IsJsonObject(std::string_view json);

}  // namespace podwire
