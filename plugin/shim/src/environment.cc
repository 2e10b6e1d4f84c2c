#include "environment.h"

namespace podwire {

std::string_view Environment::Get(std::string_view name) const {
  for (const char* const* entry = entries_; *entry != nullptr; ++entry) {
    std::string_view value(*entry);
    if (value.size() <= name.size() || value[name.size()] != '=') continue;
    if (value.compare(0, name.size(), name) != 0) continue;
    value.remove_prefix(name.size() + 1);
    return value;
  }
  return {};
}

}  // namespace podwire
