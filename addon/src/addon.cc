#include <napi.h>

#include "binding/environment.h"
#include "binding/namespace_handle.h"

namespace {

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  using podwire::netlink::NamespaceHandle;
  env.SetInstanceData(new podwire::netlink::Environment{NamespaceHandle::define(env), {}});
  exports.Set("openNamespace", Napi::Function::New<NamespaceHandle::open>(env, "openNamespace"));
  exports.Set("openNamespaceAtOnce",
              Napi::Function::New<NamespaceHandle::open_at_once>(env, "openNamespaceAtOnce"));
  return exports;
}

}  // namespace

NODE_API_MODULE(podwire_netlink, initialize)
