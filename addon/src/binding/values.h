#pragma once

#include <napi.h>

#include <optional>

#include "object/address.h"
#include "object/link.h"
#include "object/neighbour.h"
#include "object/route.h"
#include "object/rule.h"
#include "socket/result.h"

namespace podwire::netlink {

/** The shapes of lib/objects.ts and NativeError of lib/native.ts. */
Napi::Object to_js(Napi::Env env, const Link& link);
Napi::Object to_js(Napi::Env env, const Address& address);
Napi::Object to_js(Napi::Env env, const Route& route);
Napi::Object to_js(Napi::Env env, const Rule& rule);
Napi::Object to_js(Napi::Env env, const Neighbour& neighbour);
/** A neighbour of the family AF_BRIDGE. */
Napi::Object fdb_to_js(Napi::Env env, const Neighbour& entry);
Napi::Object to_js(Napi::Env env, const KernelError& error);

/** Both: `null` for nothing. */
Napi::Value text_or_null(Napi::Env env, const std::optional<std::string>& value);
template <typename Value>
Napi::Value to_js_or_null(Napi::Env env, const std::optional<Value>& value) {
  if (!value) return env.Null();
  return to_js(env, *value);
}

}  // namespace podwire::netlink
