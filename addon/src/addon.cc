#include <napi.h>

#include "binding/environment.h"
#include "binding/namespace_handle.h"
#include "socket/sysctl.h"

namespace {

void set_proc_directory(const Napi::CallbackInfo& info) {
  if (!info[0].IsString()) {
    Napi::TypeError::New(info.Env(), "directory: must be a string").ThrowAsJavaScriptException();
    return;
  }
  podwire::netlink::set_proc_directory(info[0].As<Napi::String>().Utf8Value());
}

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  using podwire::netlink::NamespaceHandle;
  env.SetInstanceData(new podwire::netlink::Environment{NamespaceHandle::define(env), {}});
  exports.Set("openNamespace", Napi::Function::New<NamespaceHandle::open>(env, "openNamespace"));
  exports.Set("openNamespaceAtOnce",
              Napi::Function::New<NamespaceHandle::open_at_once>(env, "openNamespaceAtOnce"));
  exports.Set("setProcDirectory", Napi::Function::New<set_proc_directory>(env, "setProcDirectory"));
  return exports;
}

}  // namespace

NODE_API_MODULE(podwire_netlink, initialize)
