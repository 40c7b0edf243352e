#include "libaccel/engine/collectives/shm_work.h"

#include <utility>

#include <ATen/core/ivalue.h>

#include "libaccel/tensors/tensor_memory.h"

namespace accel {
namespace {

// The future of results on a device knows it, so that what follows waits for the streams that they are written on.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& results) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& result : results)
    if (!result.device().is_cpu()) devices.push_back(result.device());
  return devices;
}

class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<at::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices_of(results_))) {
    future_->markCompleted(at::IValue(results_));
    finish();
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<at::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

class JobWork final : public c10d::Work {
 public:
  JobWork(std::shared_ptr<CommunicationThread> thread,
          CommunicationThread::JobPtr job,
          int rank,
          c10d::OpType type,
          std::vector<at::Tensor> results)
      : Work(rank, type),
        thread_(std::move(thread)),
        job_(std::move(job)),
        results_(std::move(results)) {}

  // The group's timeout holds, whatever is given here.
  bool wait(std::chrono::milliseconds) override {
    or_throw(thread_->wait(job_));
    finish();
    return true;
  }
  bool isCompleted() override { return thread_->has_run(job_); }
  std::vector<at::Tensor> result() override { return results_; }

 private:
  std::shared_ptr<CommunicationThread> thread_;
  CommunicationThread::JobPtr job_;
  std::vector<at::Tensor> results_;
};

class LetterWork final : public c10d::Work {
 public:
  LetterWork(std::shared_ptr<shm::ByteGroup> group,
             c10d::OpType type,
             const at::Tensor& tensor,
             int peer,
             int tag)
      : Work(group->rank(), type),
        group_(std::move(group)),
        tensor_(tensor),
        transfer_(std::make_shared<shm::Transfer>()) {
    check_place(tensor);
    memory_ = plain_memory_of(tensor);
    transfer_->is_sent = type == c10d::OpType::SEND;
    transfer_->peer = peer;
    transfer_->tag = tag;
    transfer_->data = bytes_of(memory_);
    transfer_->bytes = memory_.nbytes();
    transfer_->keep = std::make_shared<at::Tensor>(memory_);
    or_throw(group_->post(transfer_));
  }

  // The group's timeout holds, whatever is given here.
  bool wait(std::chrono::milliseconds) override {
    if (is_settled_) return true;
    or_throw(group_->wait(transfer_));
    if (!transfer_->is_sent) copy_back(memory_, tensor_);
    is_settled_ = true;
    finish();
    return true;
  }
  bool isCompleted() override { return or_throw(group_->is_done(transfer_)); }
  int sourceRank() const override { return transfer_->peer; }
  std::vector<at::Tensor> result() override { return {tensor_}; }

 private:
  std::shared_ptr<shm::ByteGroup> group_;
  at::Tensor tensor_;
  at::Tensor memory_;
  shm::TransferPtr transfer_;
  bool is_settled_ = false;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> completed_work(int rank,
                                              c10d::OpType type,
                                              std::vector<at::Tensor> results) {
  return c10::make_intrusive<CompletedWork>(rank, type, std::move(results));
}

c10::intrusive_ptr<c10d::Work> job_work(std::shared_ptr<CommunicationThread> thread,
                                        CommunicationThread::JobPtr job,
                                        int rank,
                                        c10d::OpType type,
                                        std::vector<at::Tensor> results) {
  return c10::make_intrusive<JobWork>(
      std::move(thread), std::move(job), rank, type, std::move(results));
}

c10::intrusive_ptr<c10d::Work> letter_work(std::shared_ptr<shm::ByteGroup> group,
                                           c10d::OpType type,
                                           const at::Tensor& tensor,
                                           int peer,
                                           int tag) {
  return c10::make_intrusive<LetterWork>(std::move(group), type, tensor, peer, tag);
}

}  // namespace accel
