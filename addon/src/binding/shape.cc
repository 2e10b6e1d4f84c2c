#include "binding/shape.h"

#include <string>

namespace podwire::netlink {

namespace {

constexpr size_t kFieldsMax = 32;

}  // namespace

const Napi::FunctionReference& Shapes::Factory(Napi::Env env, Shape shape, std::initializer_list<Field> fields) {
  auto& factory = factories_[static_cast<size_t>(shape)];
  if (!factory.IsEmpty()) return factory;
  std::string names;
  for (const auto& field : fields) names += (names.empty() ? "" : ",") + std::string(field.name);
  const Napi::Value made = env.RunScript("((" + names + ") => ({" + names + "}))");
  if (made.IsFunction()) factory = Napi::Persistent(made.As<Napi::Function>());
  return factory;
}

Napi::Object Assemble(Napi::Env env, Shape shape, std::initializer_list<Field> fields) {
  const auto& factory = env.GetInstanceData<Environment>()->shapes.Factory(env, shape, fields);
  std::array<napi_value, kFieldsMax> values;
  size_t count = 0;
  for (const auto& field : fields) values[count++] = field.value;
  napi_value object = nullptr;
  // Empty when the environment is about to end, when no JavaScript runs any more.
  if (!factory.IsEmpty()) napi_call_function(env, env.Undefined(), factory.Value(), count, values.data(), &object);
  return {env, object};
}

}  // namespace podwire::netlink
