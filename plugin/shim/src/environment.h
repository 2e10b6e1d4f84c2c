// The variables that the container runtime sets; the rest of the environment is ignored.
#pragma once

#include <cstddef>
#include <string_view>

namespace podwire {

enum class Need {
  kCall,    // the call means something else without it: a value that cannot be sent is refused
  kDetail,  // likewise, but a DEL works without it: there a bad value is dropped, or the runtime would repeat the DEL
  kTrace,   // optional trace context: an invalid value is dropped, so that it cannot fail a pod
};

struct Variable {
  std::string_view name;
  std::string_view header;  // that carries it to the resident plugin
  Need need;
};

inline constexpr std::string_view kCommandVariable = "CNI_COMMAND";

inline constexpr Variable kVariables[] = {
    {kCommandVariable, "CNI-Command", Need::kCall}, {"CNI_CONTAINERID", "CNI-ContainerID", Need::kCall},
    {"CNI_NETNS", "CNI-Netns", Need::kDetail},      {"CNI_NETNS_OVERRIDE", "CNI-Netns-Override", Need::kDetail},
    {"CNI_IFNAME", "CNI-IfName", Need::kCall},      {"CNI_ARGS", "CNI-Args", Need::kDetail},
    {"CNI_PATH", "CNI-Path", Need::kDetail},        {"TRACEPARENT", "traceparent", Need::kTrace},
    {"TRACESTATE", "tracestate", Need::kTrace},     {"BAGGAGE", "baggage", Need::kTrace},
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
