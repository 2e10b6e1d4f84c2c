#pragma once

#include <napi.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "binding/values.h"
#include "socket/result.h"

namespace podwire::netlink {

// Work for a thread of libuv's pool, and what follows from it.
class Job {
 public:
  virtual ~Job() = default;
  // On the pool's thread: only C++ values may be touched.
  virtual void Execute() = 0;
  // Back on the environment's thread.
  virtual void Settle(Napi::Env env) = 0;
};

// A job whose answer goes to a function.
template <typename Answer>
class CallbackJob : public Job {
 public:
  using Work = std::function<Result<Answer>()>;
  using Done = std::function<void(Napi::Env, Result<Answer>&)>;

  CallbackJob(Work work, Done done) : work_(std::move(work)), done_(std::move(done)) {}
  void Execute() override { answer_ = work_(); }
  void Settle(Napi::Env env) override { done_(env, *answer_); }

 private:
  Work work_;
  Done done_;
  std::optional<Result<Answer>> answer_;
};

// Carries out jobs one at a time, in their order. So a namespace never holds more than one of the four threads of
// libuv's pool, however many calls wait for the kernel's locks. For the environment's thread only.
class JobQueue : public std::enable_shared_from_this<JobQueue> {
 public:
  void Add(Napi::Env env, std::unique_ptr<Job> job);

  // The promise of what `convert` makes of the work's answer; rejected with a NativeError.
  template <typename Answer>
  Napi::Promise Promise(Napi::Env env, std::function<Result<Answer>()> work,
                        std::function<Napi::Value(Napi::Env, Answer&)> convert) {
    const Napi::Promise::Deferred deferred(env);
    // At the end of a worker thread there is none, and what the work was read from may be incomplete.
    if (deferred.Promise().IsEmpty()) return deferred.Promise();
    Add(env, std::make_unique<CallbackJob<Answer>>(std::move(work),
                                                   [deferred, convert](Napi::Env env, Result<Answer>& answer) {
                                                     if (answer) {
                                                       deferred.Resolve(convert(env, *answer));
                                                     } else {
                                                       deferred.Reject(ToJs(env, answer.Error()));
                                                     }
                                                   }));
    return deferred.Promise();
  }

 private:
  class Worker;
  void StartNext(Napi::Env env);

  std::deque<std::unique_ptr<Job>> waiting_;
  bool busy_ = false;
};

}  // namespace podwire::netlink
