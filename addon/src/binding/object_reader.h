#pragma once

#include <napi.h>

#include <optional>
#include <string>

#include "object/ip_address.h"

namespace podwire::netlink {

/**
 * Reads the properties of a JavaScript object. What is wrong, `undefined` included, leaves a pending TypeError that names the
 * path; the reader then gives empty values, and `failed` is true for it and every reader of the same call.
 */
class ObjectReader {
 public:
  ObjectReader(Napi::Value value, std::string path);

  bool failed() const { return env_.IsExceptionPending(); }
  std::string path(const char* name) const { return path_ + "." + name; }

  bool flag(const char* name);
  std::optional<bool> optional_flag(const char* name);
  uint32_t number(const char* name);
  std::optional<uint32_t> optional_number(const char* name);
  std::string text(const char* name);
  std::optional<std::string> optional_text(const char* name);
  ObjectReader object(const char* name);
  std::optional<ObjectReader> optional_object(const char* name);
  std::optional<IpAddress> optional_address(const char* name);
  Napi::Value value(const char* name);

  void fail(const char* name, const char* expected);

 private:
  Napi::Env env_;
  Napi::Object object_;
  std::string path_;
};

}  // namespace podwire::netlink
