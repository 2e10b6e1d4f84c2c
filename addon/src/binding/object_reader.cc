#include "binding/object_reader.h"

#include <cmath>

namespace podwire::netlink {

Napi::Value ElementAt(const Napi::Array& array, uint32_t position) {
  const Napi::Value found = array.Get(position);
  return found.IsEmpty() ? array.Env().Null() : found;
}

ObjectReader::ObjectReader(Napi::Value value, std::string path) : env_(value.Env()), path_(std::move(path)) {
  if (Failed()) return;
  if (value.IsObject()) {
    object_ = value.As<Napi::Object>();
  } else {
    Napi::TypeError::New(env_, path_ + ": must be an object").ThrowAsJavaScriptException();
  }
}

void ObjectReader::Fail(const char* name, const char* expected) {
  if (!Failed()) Napi::TypeError::New(env_, Path(name) + ": must be " + expected).ThrowAsJavaScriptException();
}

Napi::Value ObjectReader::Value(const char* name) {
  if (Failed() || object_.IsEmpty()) return env_.Null();
  const Napi::Value found = object_.Get(name);
  return found.IsEmpty() ? env_.Null() : found;
}

bool ObjectReader::Flag(const char* name) {
  const auto found = Value(name);
  if (!Failed() && found.IsBoolean()) return found.As<Napi::Boolean>().Value();
  Fail(name, "true or false");
  return false;
}

std::optional<bool> ObjectReader::OptionalFlag(const char* name) {
  if (Value(name).IsNull()) return std::nullopt;
  return Flag(name);
}

std::optional<double> ObjectReader::WholeNumber(const char* name, double max) {
  const auto found = Value(name);
  if (Failed() || !found.IsNumber()) return std::nullopt;
  const double number = found.As<Napi::Number>().DoubleValue();
  if (number < 0 || number > max || number != std::floor(number)) return std::nullopt;
  return number;
}

uint32_t ObjectReader::Number(const char* name) {
  const auto number = WholeNumber(name, UINT32_MAX);
  if (!number) Fail(name, "a whole number of 32 bits");
  return static_cast<uint32_t>(number.value_or(0));
}

uint64_t ObjectReader::LongNumber(const char* name) {
  constexpr double kMax = 1ULL << 53;
  const auto number = WholeNumber(name, kMax);
  if (!number) Fail(name, "a whole number of 53 bits");
  return static_cast<uint64_t>(number.value_or(0));
}

std::optional<uint32_t> ObjectReader::OptionalNumber(const char* name) {
  if (Value(name).IsNull()) return std::nullopt;
  return Number(name);
}

std::string ObjectReader::Text(const char* name) {
  const auto found = Value(name);
  if (!Failed() && found.IsString()) return found.As<Napi::String>().Utf8Value();
  Fail(name, "a string");
  return {};
}

std::optional<std::string> ObjectReader::OptionalText(const char* name) {
  if (Value(name).IsNull()) return std::nullopt;
  return Text(name);
}

std::optional<IpAddress> ObjectReader::OptionalAddress(const char* name) {
  const auto text = OptionalText(name);
  if (!text) return std::nullopt;
  const auto address = IpAddress::Parse(*text);
  if (!address) Fail(name, "an IP address");
  return address;
}

ObjectReader ObjectReader::Object(const char* name) { return {Value(name), Path(name)}; }

std::optional<ObjectReader> ObjectReader::OptionalObject(const char* name) {
  if (Value(name).IsNull()) return std::nullopt;
  return Object(name);
}

}  // namespace podwire::netlink
