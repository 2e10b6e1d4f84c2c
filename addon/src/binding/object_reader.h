#pragma once

#include <napi.h>

#include <optional>
#include <string>

#include "object/ip_address.h"

namespace podwire::netlink {

// An element of an array. Null when the end of the worker thread has taken away the values, which raises no exception.
Napi::Value ElementAt(const Napi::Array& array, uint32_t position);

// Reads the properties of a JavaScript object. A wrong value, `undefined` included, leaves a pending TypeError that
// names the path; the reader then gives empty values, and `failed` is true for it and every reader of the same call.
class ObjectReader {
 public:
  ObjectReader(Napi::Value value, std::string path);

  bool Failed() const { return env_.IsExceptionPending(); }
  std::string Path(const char* name) const { return path_ + "." + name; }

  bool Flag(const char* name);
  std::optional<bool> OptionalFlag(const char* name);
  uint32_t Number(const char* name);
  // Up to 2^53, beyond which JavaScript has no whole numbers.
  uint64_t LongNumber(const char* name);
  std::optional<uint32_t> OptionalNumber(const char* name);
  std::string Text(const char* name);
  std::optional<std::string> OptionalText(const char* name);
  ObjectReader Object(const char* name);
  std::optional<ObjectReader> OptionalObject(const char* name);
  std::optional<IpAddress> OptionalAddress(const char* name);
  Napi::Value Value(const char* name);

  void Fail(const char* name, const char* expected);

 private:
  // Nothing for any other value.
  std::optional<double> WholeNumber(const char* name, double max);

  Napi::Env env_;
  Napi::Object object_;
  std::string path_;
};

}  // namespace podwire::netlink
