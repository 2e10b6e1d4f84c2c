// The variables that the container runtime sets, and no others: the rest of its environment is none of our business.
#pragma once

#include <cstddef>
#include <string_view>

namespace podwire {

struct Variable {
  std::string_view name;
  std::string_view header;  // that carries it to the resident plugin
};

inline constexpr std::string_view kCommandVariable = "CNI_COMMAND";

inline constexpr Variable kVariables[] = {
    {kCommandVariable, "CNI-Command"},
    {"CNI_CONTAINERID", "CNI-ContainerID"},
    {"CNI_NETNS", "CNI-Netns"},
    {"CNI_NETNS_OVERRIDE", "CNI-Netns-Override"},
    {"CNI_IFNAME", "CNI-IfName"},
    {"CNI_ARGS", "CNI-Args"},
    {"CNI_PATH", "CNI-Path"},
    {"TRACEPARENT", "traceparent"},
    {"TRACESTATE", "tracestate"},
    {"BAGGAGE", "baggage"},
};

class Environment {
 public:
  // `entries` is NULL-terminated, in the form of environ(7), and outlives this object.
  explicit Environment(const char* const* entries) : entries_(entries) {}

  // Empty when the variable is absent: the CNI specification makes no difference between the two.
  std::string_view Get(std::string_view name) const;

 private:
  const char* const* entries_;
};

}  // namespace podwire
