// PowerSgd: exchanges gradients as products of few columns, and remembers what that left out.
//
// A gradient G [n, m] becomes P Q^T, P [n, r] and Q [m, r] with r columns: one step of a power iteration on the mean of all ranks'
// gradients, from the Q of the step before. So r (n + m) numbers go between the ranks in place of n m, and all get the same
// product. What a rank's own gradient has besides, its error, is added to its next one.
//
// The state is by bucket. It is this rank's own, for the error is, and belongs to the parameters of the bucket in their order:
// where LibTorch has made its buckets anew, an exchange averages and begins with new states.
//
// Threads:  as CommunicationHook.
// Errors    what CommunicationGroup throws.
// Source:   Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"; the order of
//           operations, what is averaged and how Q is drawn are those of PyTorch 2.11, powerSGD_hook.py.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/communication_hook.h>
#include <accel/state_dict.h>

namespace accel {

class PowerSgd final : public Stateful {
 public:
  enum class Form {
    kByMatrix,  // each gradient is a matrix: its first axis, and all others
    kByBucket,  // the bucket is one square matrix, with zeros at its end: faster, less exact
  };

  // Throws kInvalidArgument naming an option that makes no sense.
  PowerSgd(const PowerSGDOptions& options, Form form);

  // As CommunicationHook. A step in which P is not finite (an overflow of fp16) is averaged, and leaves the state as it is.
  at::Tensor exchange(GradientBucket& bucket, CommunicationGroup& group);

  // Of this rank, and how many there were.
  [[nodiscard]] StateDict state_dict() const override;
  // A state of another form, or of another number of columns, begins anew; so does, at its exchange, one of another type of numbers.
  // Throws kCheckpointMismatch.
  void load_state_dict(const StateDict& state) override;
  // After a load, or where this rank found nothing to load: all go on from where rank 0 is. Errors of another number of ranks
  // are gone. Requires: every rank calls it.
  void agree(CommunicationGroup& group);

 private:
  struct Bucket {
    std::vector<std::int64_t> numels;  // of its parameters, whose state it is
    at::Tensor error;  // [n], of kByBucket with the end of the square; undefined: none yet
    at::Tensor q;      // all Q, one behind the other; undefined: to be drawn
  };

  at::Tensor exchange_matrices(GradientBucket& bucket, Bucket& state, CommunicationGroup& group);
  at::Tensor exchange_square(GradientBucket& bucket, Bucket& state, CommunicationGroup& group);
  // Adds the error of the step before. Returns what the error of this one is measured from.
  at::Tensor add_error(at::Tensor& gradients, Bucket& state) const;
  [[nodiscard]] bool is_compressed(std::int64_t rows, std::int64_t columns) const;
  [[nodiscard]] std::uint32_t next_seed();
  void skip_seeds(std::int64_t count);

  PowerSGDOptions options_;
  Form form_;
  std::mt19937 generator_;      // numpy.random.RandomState(random_seed)
  std::int64_t num_draws_ = 0;  // seeds taken from it
  std::int64_t num_exchanges_ = 0;
  std::int64_t num_ranks_ = 0;  // of the last exchange, or of the state that was loaded
  std::map<std::size_t, Bucket> buckets_;
};

}  // namespace accel
