#include "binding/loop_poll.h"

#include <uv.h>

namespace podwire::netlink {

struct LoopPoll::Handle {
  Handle(Napi::Env environment, std::function<void()> callback)
      : env(environment), ready(std::move(callback)), context(env, "podwire.netlink") {}

  uv_poll_t poll{};
  Napi::Env env;
  std::function<void()> ready;
  Napi::AsyncContext context;
  napi_async_cleanup_hook_handle cleanup = nullptr;
  // Null when the owner is gone.
  LoopPoll* owner = nullptr;
  bool closing = false;

  void Start() {
    uv_poll_start(&poll, UV_READABLE, [](uv_poll_t* poll, int status, int) {
      auto* handle = static_cast<Handle*>(poll->data);
      // libuv stops polling at any error, while on a netlink socket ENOBUFS is only something to be read.
      if (status < 0) handle->Start();
      handle->Call();
    });
  }

  void Call() {
    const Napi::HandleScope scope(env);
    const Napi::CallbackScope callback(env, context);
    ready();
    if (env.IsExceptionPending()) napi_fatal_exception(env, env.GetAndClearPendingException().Value());
  }
};

LoopPoll::LoopPoll(Napi::Env env, int fd, std::function<void()> ready) : handle_(new Handle(env, std::move(ready))) {
  uv_loop_t* loop = nullptr;
  napi_get_uv_event_loop(env, &loop);
  handle_->owner = this;
  handle_->poll.data = handle_;
  if (const int failure = uv_poll_init(loop, &handle_->poll, fd); failure != 0) {
    // Fatal, because a caller that waits for the descriptor would wait forever.
    napi_fatal_error("podwire.netlink: a file descriptor cannot be polled", NAPI_AUTO_LENGTH, uv_strerror(failure),
                     NAPI_AUTO_LENGTH);
  }
  uv_unref(reinterpret_cast<uv_handle_t*>(&handle_->poll));
  // The end of the environment waits until libuv has released the handle.
  napi_add_async_cleanup_hook(
      env, [](napi_async_cleanup_hook_handle, void* data) { Close(static_cast<Handle*>(data)); }, handle_,
      &handle_->cleanup);
  handle_->Start();
}

LoopPoll::~LoopPoll() {
  if (!handle_) return;
  handle_->owner = nullptr;
  Close(handle_);
}

void LoopPoll::Close(Handle* handle) {
  if (handle->owner) handle->owner->handle_ = nullptr;
  if (handle->closing) return;
  handle->closing = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&handle->poll), [](uv_handle_t* closed) {
    auto* freed = static_cast<Handle*>(closed->data);
    napi_remove_async_cleanup_hook(freed->cleanup);
    delete freed;
  });
}

void LoopPoll::Hold(bool held) {
  if (!handle_) return;
  auto* poll = reinterpret_cast<uv_handle_t*>(&handle_->poll);
  if (held) {
    uv_ref(poll);
  } else {
    uv_unref(poll);
  }
}

void LoopPoll::Listen(bool listens) {
  if (!handle_) return;
  if (listens) {
    handle_->Start();
  } else {
    uv_poll_stop(&handle_->poll);
  }
}

}  // namespace podwire::netlink
