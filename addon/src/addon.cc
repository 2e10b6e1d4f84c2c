#include <napi.h>
#include <sys/file.h>
#include <sys/timex.h>

#include <cerrno>

#include "binding/namespace_handle.h"
#include "binding/shape.h"
#include "binding/values.h"
#include "socket/peer.h"
#include "socket/sysctl.h"

namespace {

void SetProcDirectory(const Napi::CallbackInfo& info) {
  if (!info[0].IsString()) {
    Napi::TypeError::New(info.Env(), "directory: must be a string").ThrowAsJavaScriptException();
    return;
  }
  podwire::netlink::SetProcDirectory(info[0].As<Napi::String>().Utf8Value());
}

// NativePeer of lib/native.ts, or its NativeError.
Napi::Value PeerCredentials(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsNumber()) {
    Napi::TypeError::New(env, "descriptor: must be a number").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  auto peer = podwire::netlink::ReadPeerCredentials(info[0].As<Napi::Number>().Int32Value());
  if (!peer) return ToJs(env, peer.Error());
  auto object = Napi::Object::New(env);
  object.Set("pid", Napi::Number::New(env, peer->pid));
  object.Set("uid", Napi::Number::New(env, peer->uid));
  object.Set("gid", Napi::Number::New(env, peer->gid));
  return object;
}

// Whether the lock of an open file was free and is its own now (flock(2)), or a NativeError.
Napi::Value LockFile(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsNumber()) {
    Napi::TypeError::New(env, "descriptor: must be a number").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  if (flock(info[0].As<Napi::Number>().Int32Value(), LOCK_EX | LOCK_NB) == 0) return Napi::Boolean::New(env, true);
  if (errno == EWOULDBLOCK) return Napi::Boolean::New(env, false);
  return ToJs(env, podwire::netlink::KernelError{errno, ""});
}

// Whether the system's clock follows another clock (adjtimex(2)), or a NativeError.
Napi::Value ClockSynchronized(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  timex state{};
  const int answer = adjtimex(&state);
  if (answer == -1) return ToJs(env, podwire::netlink::KernelError{errno, ""});
  return Napi::Boolean::New(env, answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0);
}

Napi::Object Initialize(Napi::Env env, Napi::Object exports) {
  using podwire::netlink::NamespaceHandle;
  env.SetInstanceData(new podwire::netlink::Environment{NamespaceHandle::Define(env), {}});
  exports.Set("clockSynchronized", Napi::Function::New<ClockSynchronized>(env, "clockSynchronized"));
  exports.Set("openNamespace", Napi::Function::New<NamespaceHandle::Open>(env, "openNamespace"));
  exports.Set("openNamespaceAtOnce", Napi::Function::New<NamespaceHandle::OpenAtOnce>(env, "openNamespaceAtOnce"));
  exports.Set("lockFile", Napi::Function::New<LockFile>(env, "lockFile"));
  exports.Set("makeNamespace", Napi::Function::New<NamespaceHandle::Make>(env, "makeNamespace"));
  exports.Set("peerCredentials", Napi::Function::New<PeerCredentials>(env, "peerCredentials"));
  exports.Set("setProcDirectory", Napi::Function::New<SetProcDirectory>(env, "setProcDirectory"));
  return exports;
}

}  // namespace

NODE_API_MODULE(podwire_netlink, Initialize)
