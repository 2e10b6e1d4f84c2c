#include "error_document.h"

#include "configuration.h"
#include "text/utf8.h"

namespace podwire {
namespace {

void AppendEscaped(Buffer& json, char c) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  switch (c) {
    case '"':
      return json.Append("\\\"");
    case '\\':
      return json.Append("\\\\");
    case '\n':
      return json.Append("\\n");
    case '\r':
      return json.Append("\\r");
    case '\t':
      return json.Append("\\t");
    default:
      if (static_cast<unsigned char>(c) >= 0x20) return json.Append(c);
      json.Append("\\u00");
      json.Append(kHexDigits[c >> 4]);
      json.Append(kHexDigits[c & 0xF]);
  }
}

}  // namespace

void AppendJsonString(Buffer& json, std::string_view text) {
  json.Append('"');
  while (!text.empty()) {
    const std::size_t length = Utf8SequenceLength(text);
    if (length == 0) {
      AppendUtf8(json, kReplacementCharacter);
    } else if (length == 1) {
      AppendEscaped(json, text.front());
    } else {
      json.Append({text.data(), length});
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  json.Append('"');
}

Buffer WriteErrorDocument(const Failure& failure, std::string_view configuration) {
  Buffer json;
  json.Append("{\"cniVersion\":");
  AppendJsonString(json, StatedVersion(configuration).View());
  json.Append(",\"code\":");
  json.Append(Decimal(static_cast<unsigned>(failure.code)));
  json.Append(",\"msg\":");
  AppendJsonString(json, failure.message.View());
  json.Append(",\"details\":");
  AppendJsonString(json, failure.details.View());
  json.Append("}\n");
  return json;
}

}  // namespace podwire
