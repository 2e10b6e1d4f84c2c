#pragma once

#include <napi.h>

#include <optional>

#include "object/address.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/qdisc.h"
#include "object/route.h"
#include "object/rule.h"
#include "socket/result.h"

namespace podwire::netlink {

// The shapes of lib/objects.ts and NativeError of lib/native.ts.
Napi::Object ToJs(Napi::Env env, const Link& link);
Napi::Object ToJs(Napi::Env env, const Address& address);
Napi::Object ToJs(Napi::Env env, const Route& route);
Napi::Object ToJs(Napi::Env env, const Rule& rule);
Napi::Object ToJs(Napi::Env env, const Neighbour& neighbour);
// A neighbour of the family AF_BRIDGE.
Napi::Object FdbToJs(Napi::Env env, const Neighbour& entry);
Napi::Object ToJs(Napi::Env env, const Qdisc& qdisc);
Napi::Object ToJs(Napi::Env env, const KernelError& error);

// Both: `null` for nothing.
Napi::Value TextOrNull(Napi::Env env, const std::optional<std::string>& value);
template <typename Value>
Napi::Value ToJsOrNull(Napi::Env env, const std::optional<Value>& value) {
  if (!value) return env.Null();
  return ToJs(env, *value);
}

}  // namespace podwire::netlink
