#include "binding/object_reader.h"

#include <cmath>

namespace podwire::netlink {

ObjectReader::ObjectReader(Napi::Value value, std::string path) : env_(value.Env()), path_(std::move(path)) {
  if (failed()) return;
  if (value.IsObject()) {
    object_ = value.As<Napi::Object>();
  } else {
    Napi::TypeError::New(env_, path_ + ": must be an object").ThrowAsJavaScriptException();
  }
}

void ObjectReader::fail(const char* name, const char* expected) {
  if (!failed()) Napi::TypeError::New(env_, path(name) + ": must be " + expected).ThrowAsJavaScriptException();
}

Napi::Value ObjectReader::value(const char* name) {
  return failed() ? env_.Null() : object_.Get(name);
}

bool ObjectReader::flag(const char* name) {
  const auto found = value(name);
  if (!failed() && found.IsBoolean()) return found.As<Napi::Boolean>().Value();
  fail(name, "true or false");
  return false;
}

std::optional<bool> ObjectReader::optional_flag(const char* name) {
  if (value(name).IsNull()) return std::nullopt;
  return flag(name);
}

uint32_t ObjectReader::number(const char* name) {
  const auto found = value(name);
  if (!failed() && found.IsNumber()) {
    const double number = found.As<Napi::Number>().DoubleValue();
    if (number >= 0 && number <= UINT32_MAX && number == std::floor(number)) return static_cast<uint32_t>(number);
  }
  fail(name, "a whole number of 32 bits");
  return 0;
}

std::optional<uint32_t> ObjectReader::optional_number(const char* name) {
  if (value(name).IsNull()) return std::nullopt;
  return number(name);
}

std::string ObjectReader::text(const char* name) {
  const auto found = value(name);
  if (!failed() && found.IsString()) return found.As<Napi::String>().Utf8Value();
  fail(name, "a string");
  return {};
}

std::optional<std::string> ObjectReader::optional_text(const char* name) {
  if (value(name).IsNull()) return std::nullopt;
  return text(name);
}

std::optional<IpAddress> ObjectReader::optional_address(const char* name) {
  const auto text = optional_text(name);
  if (!text) return std::nullopt;
  const auto address = IpAddress::parse(*text);
  if (!address) fail(name, "an IP address");
  return address;
}

ObjectReader ObjectReader::object(const char* name) { return {value(name), path(name)}; }

std::optional<ObjectReader> ObjectReader::optional_object(const char* name) {
  if (value(name).IsNull()) return std::nullopt;
  return object(name);
}

}  // namespace podwire::netlink
