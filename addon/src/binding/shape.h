#pragma once

#include <napi.h>

#include <array>
#include <initializer_list>

namespace podwire::netlink {

// Kinds of objects that are made in large numbers.
enum class Shape { kLink, kAddress, kRoute, kRule, kNeighbour, kFdb, kOutcome, kEvent };

struct Field {
  const char* name;
  napi_value value;
};

// A function for each shape, made when it is first needed. Of one environment.
class Shapes {
 public:
  const Napi::FunctionReference& Factory(Napi::Env env, Shape shape, std::initializer_list<Field> fields);

 private:
  std::array<Napi::FunctionReference, 8> factories_;
};

// State of one environment (the main thread, a worker thread).
struct Environment {
  // The constructor of NativeNamespace.
  Napi::FunctionReference namespaces;
  Shapes shapes;
};

// An object with these properties, in one call: setting a dozen properties one by one through Node-API takes many times
// as long, which a list of ten thousand routes shows. The names of a shape must be the same each time.
Napi::Object Assemble(Napi::Env env, Shape shape, std::initializer_list<Field> fields);

}  // namespace podwire::netlink
