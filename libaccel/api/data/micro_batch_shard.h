// MicroBatchShard: a rank's run of the micro-batches of each step, out of the batches of all.
//
// Step s has the batches s * total ... of a pass. The last step may lack some: it gets the first batches of the pass again, or is
// left out, so that all ranks make as many steps.
//
// Threads:  as BatchSamplerBase.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <accel/batch_samplers.h>
#include <accel/micro_batches.h>

namespace accel {

class MicroBatchShard final : public BatchSamplerBase {
 public:
  enum class LastStep { kIsCompleted, kIsLeftOut };

  MicroBatchShard(std::shared_ptr<BatchSamplerBase> batches,
                  MicroBatches micro_batches,
                  LastStep last_step);

  [[nodiscard]] BatchList begin_pass() override;
  void end_pass() override { batches_->end_pass(); }
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override {
    return batches_->batch_size();
  }
  [[nodiscard]] bool drop_last() const override { return batches_->drop_last(); }
  void set_epoch(std::int64_t epoch) override { batches_->set_epoch(epoch); }
  [[nodiscard]] std::shared_ptr<Sampler> sampler() const override { return batches_->sampler(); }

 private:
  [[nodiscard]] std::int64_t num_steps(std::int64_t num_batches) const noexcept;

  std::shared_ptr<BatchSamplerBase> batches_;
  MicroBatches micro_batches_;
  LastStep last_step_;
};

}  // namespace accel
