#include "binding/job.h"

namespace podwire::netlink {

// Deletes itself when it is done (Napi::AsyncWorker); until then it keeps the queue.
class JobQueue::Worker : public Napi::AsyncWorker {
 public:
  Worker(Napi::Env env, std::shared_ptr<JobQueue> queue, std::unique_ptr<Job> job)
      : Napi::AsyncWorker(env, "podwire.netlink"), queue_(std::move(queue)), job_(std::move(job)) {}

  void Execute() override { job_->Execute(); }

  void OnOK() override {
    // The next one starts first: it need not wait for what the promise's callbacks do.
    queue_->StartNext(Env());
    job_->Settle(Env());
  }

 private:
  std::shared_ptr<JobQueue> queue_;
  std::unique_ptr<Job> job_;
};

void JobQueue::Add(Napi::Env env, std::unique_ptr<Job> job) {
  waiting_.push_back(std::move(job));
  if (!busy_) StartNext(env);
}

void JobQueue::StartNext(Napi::Env env) {
  busy_ = !waiting_.empty();
  if (!busy_) return;
  auto job = std::move(waiting_.front());
  waiting_.pop_front();
  (new Worker(env, shared_from_this(), std::move(job)))->Queue();
}

}  // namespace podwire::netlink
