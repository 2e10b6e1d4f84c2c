#pragma once

#include <napi.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "binding/values.h"
#include "socket/result.h"

namespace podwire::netlink {

/** Work for a thread of libuv's pool, and the promise that its answer settles. */
class Job {
 public:
  explicit Job(Napi::Env env) : deferred_(env) {}
  virtual ~Job() = default;

  Napi::Promise promise() const { return deferred_.Promise(); }
  /** On the pool's thread: only C++ values may be touched. */
  virtual void execute() = 0;
  /** Back on the environment's thread. */
  virtual void settle(Napi::Env env) = 0;

 protected:
  Napi::Promise::Deferred deferred_;
};

template <typename Answer>
class PromiseJob : public Job {
 public:
  using Work = std::function<Result<Answer>()>;
  using Convert = std::function<Napi::Value(Napi::Env, Answer&)>;

  PromiseJob(Napi::Env env, Work work, Convert convert)
      : Job(env), work_(std::move(work)), convert_(std::move(convert)) {}

  void execute() override { answer_ = work_(); }

  void settle(Napi::Env env) override {
    if (*answer_) {
      deferred_.Resolve(convert_(env, **answer_));
    } else {
      deferred_.Reject(to_js(env, answer_->error()));
    }
  }

 private:
  Work work_;
  Convert convert_;
  std::optional<Result<Answer>> answer_;
};

/**
 * Carries out jobs one at a time, in their order. So a namespace never holds more than one of the four threads of libuv's
 * pool, however many calls wait for the kernel's locks. For the environment's thread only.
 */
class JobQueue : public std::enable_shared_from_this<JobQueue> {
 public:
  Napi::Promise add(Napi::Env env, std::unique_ptr<Job> job);

 private:
  class Worker;
  void start_next(Napi::Env env);

  std::deque<std::unique_ptr<Job>> waiting_;
  bool busy_ = false;
};

}  // namespace podwire::netlink
