// The CNI specification's error document.
#pragma once

#include <string_view>

#include "failure.h"
#include "text/buffer.h"

namespace podwire {

// `configuration` is what came in on stdin: the document repeats its cniVersion where it has one.
Buffer WriteErrorDocument(const Failure& failure, std::string_view configuration);

// `text` as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(Buffer& json, std::string_view text);

}  // namespace podwire
