#pragma once

#include <string>
#include <utility>
#include <variant>

namespace podwire::netlink {

// Why the kernel refused: a positive errno value and its extended-ack text, or words of ours; empty for none.
struct KernelError {
  int number;
  std::string text;
};

// A value or the reason why there is none.
template <typename Value>
class Result {
 public:
  Result(Value value) : content_(std::move(value)) {}
  Result(KernelError error) : content_(std::move(error)) {}

  explicit operator bool() const { return std::holds_alternative<Value>(content_); }
  Value& operator*() { return std::get<Value>(content_); }
  Value* operator->() { return &std::get<Value>(content_); }
  const KernelError& Error() const { return std::get<KernelError>(content_); }

 private:
  std::variant<Value, KernelError> content_;
};

}  // namespace podwire::netlink
