// ModelSync: how the ranks keep one model in step; DdpReducer, or ShardedModel for one that is divided over them.
//
// A forward that a synchronising backward will follow is bracketed by before_forward() and after_forward().
//
// Threads:  the thread that trains.
// Errors    throws kPeerLost, kProcessGroup, and what the implementation says.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accel {

class GradientExchange;
class Stateful;
struct MemoryUse;
struct MicroBatches;
struct NamedParameter;
struct StateView;
class SubtreeSums;

namespace checkpoint {
class DividedTensors;
}

// Which parameters of a divided model a rank has whole and in full precision while a checkpoint is made or read.
enum class FullParameters {
  kAll,
  kUndivided,  // what no rank has as a range of a file: tensors that are whole, and units with a parameter whose memory is
               // not in row-major order. Of the rest a file gets the shards
  kNone,       // other ranks have all: this one sends its shards of each unit
  kAsked,      // as kUndivided, and the units of those parameters that this rank asks for
};

class ModelSync {
 public:
  virtual ~ModelSync() = default;

  virtual void before_forward() = 0;
  // Whether after_forward() needs the tensors that the forward returned.
  [[nodiscard]] virtual bool wants_outputs() const noexcept = 0;
  // May replace outputs by tensors of the same value.
  virtual void after_forward(std::vector<at::Tensor>& outputs) = 0;
  // Accelerator::backward() begins: after_backward() or abandon_backward() follows. Without it a backward is the program's own.
  virtual void begin_backward() noexcept {}
  // The loss's backward is done. Requires: every rank calls it.
  virtual void after_backward() = 0;
  // It ended with an exception.
  virtual void abandon_backward() noexcept {}

  // False: gradients stay local until it is true again. Returns what it was.
  virtual bool set_sync_in_backward(bool sync) noexcept = 0;
  [[nodiscard]] virtual bool syncs_in_backward() const noexcept = 0;
  // The next backward synchronises although its forward ran without. Undone by the caller with set_sync_in_backward().
  virtual void sync_next_backward() = 0;
  // Reproducible training, in which no backward synchronises: exchanges what this rank's micro-batches of a step, `run`, have
  // brought. Then the model has the gradients that a backward which synchronises leaves. Requires: every rank calls it.
  virtual void sum_in_order(SubtreeSums& own, const MicroBatches& run) = 0;

  // ---- for ranks that run out of batches before others

  [[nodiscard]] virtual GradientExchange& exchange() noexcept = 0;
  // All ranks have joined: what each has whole becomes that of rank `from`. Requires: every rank calls it.
  virtual void end_join(int /*from*/) {}

  // What a communication hook remembers on this rank, for checkpoints; nullptr: nothing.
  [[nodiscard]] virtual Stateful* hook_state() const noexcept { return nullptr; }
  // After a load. Requires: every rank calls it.
  virtual void agree_on_hook_state() {}

  // ---- of a model that is divided; where each rank has all of it (the defaults) there is nothing to do

  [[nodiscard]] virtual bool is_divided() const noexcept { return false; }
  // Whether this rank's shards are the copies that go into files; others have the same.
  [[nodiscard]] virtual bool is_first_replica() const noexcept { return true; }
  [[nodiscard]] virtual std::span<const NamedParameter> divided_parameters() const { return {}; }
  // What the optimizer of this rank has of a parameter, or of such a piece of one: undefined where that is nothing;
  // std::nullopt: the parameter is whole here.
  [[nodiscard]] virtual std::optional<at::Tensor> piece(const at::Tensor& /*parameter*/) const {
    return std::nullopt;
  }
  // Gradients that a backward of the program's own has brought are averaged, too, and those that it has cleared are gone.
  virtual void settle() {}
  // Whether the last backward that synchronised has brought any.
  [[nodiscard]] virtual bool has_gradients() const { return false; }
  // Whether what is divided comes and goes, and whether this rank has shards in full precision beside the parameters.
  [[nodiscard]] virtual bool is_paged() const noexcept { return false; }
  [[nodiscard]] virtual bool has_masters() const noexcept { return false; }
  // Adds the bytes of what is divided, but for gradients that are done: those are the pieces'.
  virtual void add_memory_use(MemoryUse& /*use*/) const {}

  // Between them those parameters have their full precision. asked: of kAsked. Every rank calls it.
  virtual void begin_save(FullParameters /*which*/, std::span<const at::Tensor> /*asked*/) {}
  virtual void end_save() {}
  // Between them parameters may be written to, on every rank the same; where there are masters, those parameters. Throws
  // kUnsupported, on all ranks, while one holds parameters.
  virtual void begin_load(FullParameters /*which*/, std::span<const at::Tensor> /*asked*/) {}
  virtual void end_load() {}
  // After end_load(): lets every rank see what all have loaded. Throws as begin_load(). Requires: every rank calls it.
  virtual void publish_loaded() {}
  // Notes what this rank has of the parameters that go into files by parts.
  virtual void add_parts(checkpoint::DividedTensors&) const {}
  // Adds what this rank has of the module's state to a view of the type kSharded or kLocal.
  virtual void add_to_view(const torch::nn::Module& /*module*/, StateView& /*view*/) {}
};

}  // namespace accel
