// In-memory checkpoints of an Accelerator.
//
// Which is newer, the one in memory or the one on disk, is told by what was on disk when the other was saved: numbers of a
// project's checkpoints only grow, so a higher one than was there then was written afterwards.

#include <algorithm>
#include <cstdlib>
#include <string>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/checkpoint/states/replica_shares.h"
#include "libaccel/engine/gradients/ddp_reducer.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

checkpoint::MemoryCheckpoints* Accelerator::Impl::memory_checkpoints() {
  if (looked_for_memory) return memory.get();
  memory_keeper = checkpoint::supervisor_memory();
  // All ranks have one, or none does: who has not would leave the others waiting.
  const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    return memory_keeper == nullptr ? "none" : "";
  }));
  looked_for_memory = true;
  if (std::find(said.begin(), said.end(), "none") != said.end()) {
    memory_keeper.reset();
    return nullptr;
  }
  checkpoint::MemoryCheckpoints::Hooks hooks;
  hooks.on_size = [this](const std::string& text) {
    logger.warning(text, {.main_process_only = false});
  };
  memory = std::make_unique<checkpoint::MemoryCheckpoints>(*memory_keeper, std::move(hooks));
  return memory.get();
}

Accelerator::Impl::OnDisk Accelerator::Impl::newest_checkpoint() {
  if (project.project_dir.empty()) return {};
  if (!newest_on_disk) {
    const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&] {
      OnDisk newest;
      if (state.process_index() == 0) {
        for (const CheckpointInfo& info : checkpoint_series().complete()) {
          if (info.iteration > newest.number) newest = {info.iteration, info.generation};
        }
      }
      return std::to_string(newest.number) + " " + std::to_string(newest.generation);
    }));
    const std::string& first = said.front();
    newest_on_disk = {std::stoll(first), std::stoll(first.substr(first.find(' ')))};
  }
  OnDisk newest = *newest_on_disk;
  // One that is being written in the background is older than what comes after it. Its generation is the series', which may
  // be above the count of restarts.
  if (saving) {
    newest.number = std::max(newest.number, checkpoint_series().iteration() - 1);
    newest.generation = std::max(newest.generation, checkpoint::background_saves().generation());
  }
  return newest;
}

std::vector<at::Tensor> Accelerator::Impl::replicas() const {
  std::vector<at::Tensor> replicas;
  for (const auto& model : models) {
    if (dynamic_cast<const DdpReducer*>(model->sync().get()) == nullptr) continue;
    for (const NamedParameter& parameter : trainable_parameters(*model->module())) {
      if (!checkpoint::is_shareable(parameter.tensor)) continue;
      replicas.push_back(parameter.tensor);
      for (const AcceleratedOptimizer& optimizer : optimizers) {
        for (at::Tensor& tensor :
             checkpoint::state_tensors(optimizer.optimizer(), parameter.tensor)) {
          if (checkpoint::is_shareable(tensor)) replicas.push_back(std::move(tensor));
        }
      }
    }
  }
  return replicas;
}

void Accelerator::Impl::share_replicas() {
  const std::vector<at::Tensor> tensors = replicas();
  if (state.num_processes() == 1 || tensors.empty()) return;
  const auto samples = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&] {
    return std::to_string(checkpoint::sample_of(tensors));
  }));
  const auto first = samples.begin() + state.process_index() - state.local_process_index();
  const bool are_equal = std::all_of(first,
                                     first + state.local_num_processes(),
                                     [&](const auto& sample) { return sample == *first; });
  // A loop that steps without reduction makes them differ: the first rank's values count then.
  if (!are_equal) return;
  checkpoint::add_shares(
      tensors,
      {.place = state.local_process_index(), .count = state.local_num_processes()},
      divided);
}

bool Accelerator::Impl::save_in_memory() {
  steps_since_memory = 0;
  checkpoint::MemoryCheckpoints* const checkpoints = memory_checkpoints();
  if (checkpoints == nullptr) {
    logger.warning_once(
        "there are no in-memory checkpoints: no launcher holds memory for this process (start it "
        "with accel-launch)");
    return false;
  }
  const OnDisk disk = newest_checkpoint();
  with_objects_to_save(SaveTo::kMemory, [&](const CheckpointObjects& objects) {
    std::ignore = checkpoints->save(*checkpoint::current_ranks(),
                                    objects,
                                    {.step = num_batches,
                                     .generation = state.restart_count(),
                                     .newest_on_disk = {disk.number, disk.generation}});
  });
  return true;
}

// Nodes that come and go are no failure and no restart, and what the ranks before them have saved is not to be lost. Whoever
// knew that the job has begun may have gone with its node, so the number of the generation alone is enough: it begins at 0 or,
// over nodes, at 1, and only grows. The notes count where it has begun anew all the same.
bool Accelerator::Impl::is_restarted() {
  constexpr std::uint64_t kFirstOverNodes = 1;
  const auto* const text = std::getenv("ACCEL_GENERATION");
  const std::uint64_t generation = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  if (state.restart_count() > 0 || generation > kFirstOverNodes) return true;
  checkpoint::MemoryCheckpoints* const checkpoints = memory_checkpoints();
  return checkpoints != nullptr &&
         checkpoints->has_begun_before(*checkpoint::current_ranks(), generation + 1);
}

void Accelerator::Impl::reserve_memory() {
  if (project.memory_checkpoint_every == 0) return;
  checkpoint::MemoryCheckpoints* const checkpoints = memory_checkpoints();
  if (checkpoints == nullptr) return;  // the first save says so
  // Of optimizers that are copies, the ranks of the node share the states, or the first keeps them.
  const bool shares = !replicas().empty();
  const auto sharers = static_cast<std::uint64_t>(state.local_num_processes());
  std::uint64_t expected = 0;
  for (const AcceleratedOptimizer& optimizer : optimizers) {
    const bool is_sharded =
        dynamic_cast<const sharding::ShardedOptimizer*>(gate_of(optimizer).get()) != nullptr;
    const std::uint64_t bytes = checkpoint::expected_state_bytes(optimizer.optimizer());
    if (is_sharded) {
      expected += bytes;
    } else if (shares) {
      expected += (bytes + sharers - 1) / sharers;
    } else if (state.local_process_index() == 0) {
      expected += bytes;
    }
  }
  with_objects_to_save(SaveTo::kMemory, [&](const CheckpointObjects& objects) {
    checkpoints->reserve(*checkpoint::current_ranks(), objects, expected);
  });
}

std::optional<LoadReport> Accelerator::Impl::load_from_memory(DiskCounts disk) {
  if (!is_restarted()) return std::nullopt;
  checkpoint::MemoryCheckpoints* const checkpoints = memory_checkpoints();
  if (checkpoints == nullptr) return std::nullopt;
  const auto ranks = checkpoint::current_ranks();
  const checkpoint::MemoryCheckpoints::Found found = checkpoints->find(*ranks);
  std::string why_not = found.choice.why_not;
  std::optional<LoadReport> report;
  if (found.choice.stamp && disk == DiskCounts::kYes) {
    const OnDisk newest = newest_checkpoint();
    if (checkpoint::DiskMark{newest.number, newest.generation}.is_newer_than(found.newest_on_disk))
      why_not = "checkpoint_" + std::to_string(newest.number) + " on disk is newer";
  }
  if (why_not.empty()) {
    report = load([&](const CheckpointObjects& objects) {
      return checkpoints->load(*ranks, objects, why_not);
    });
  }
  if (report) {
    // The series may have been made for a run that begins.
    has_gone_on = true;
    this->checkpoints.reset();
    logger.warning("going on from memory: step " + std::to_string(report->checkpoint.step));
  } else if (project.memory_checkpoint_every > 0 || found.choice.stamp) {
    logger.warning("not going on from memory: " + why_not);
  }
  return report;
}

bool Accelerator::save_state_in_memory() {
  return impl_->save_in_memory();
}

std::optional<CheckpointInfo> Accelerator::load_state_in_memory() {
  const std::optional<LoadReport> report = impl_->load_from_memory(Impl::DiskCounts::kNo);
  if (!report) return std::nullopt;
  return take_over(*report);
}

}  // namespace accel
