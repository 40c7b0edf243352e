#include "libaccel/api/accelerator/checkpointing.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <accel/detail/step_span.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/total_limit.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/tracking/tracker_writer.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::detail {
namespace {

ProjectConfiguration project_of(const AcceleratorOptions& options) {
  ProjectConfiguration project = options.project_config;
  if (!options.project_dir.empty()) project.project_dir = options.project_dir;
  if (project.logging_dir.empty()) project.logging_dir = project.project_dir;
  return project;
}

// The supervisor's token; empty when nobody listens. Errors kCheckpointMismatch: it refused, because
// a newer generation of the job has begun.
std::string commit_here(const CheckpointInfo& checkpoint, const Logger& logger) {
  WorkerChannel* const channel = supervisor_channel();
  if (channel == nullptr) return "";
  const std::string digest = or_throw(checkpoint::read_manifest(checkpoint.folder)).digest;
  Result<std::string> token = channel->commit(static_cast<std::uint64_t>(checkpoint.step),
                                              std::filesystem::absolute(checkpoint.folder).string(),
                                              digest);
  if (!token && token.error().code() == ErrorCode::kPeerLost) {
    logger.warning("the launcher was not told of the checkpoint: " + token.error().message());
    return "";
  }
  return or_throw(std::move(token));
}

}  // namespace

Checkpointing::Checkpointing(const Preparation& prepared, Training& training)
    : prepared_(prepared),
      training_(training),
      project_(project_of(prepared.options)),
      content_(prepared, training, project_.save_on_each_node) {
  checkpoint::check_total_limit(project_.total_limit);
  if (!project_.project_dir.empty())
    series_folder_ = checkpoint::absolute_name(project_.project_dir) / "checkpoints";
  if (project_.memory_checkpoint_every < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "memory_checkpoint_every is " + std::to_string(project_.memory_checkpoint_every) +
                    ", expected 0 (never) or a number of steps");
  }
  set_up_preemption();
}

void Checkpointing::set_up_preemption() {
  const AcceleratorOptions& options = prepared_.options;
  if (options.preemption_exit_code < 1 || options.preemption_exit_code > 255) {
    throw Error(ErrorCode::kInvalidArgument,
                "preemption_exit_code is " + std::to_string(options.preemption_exit_code) +
                    ", expected 1 to 255");
  }
  if (options.on_preemption == OnPreemption::kStop) return;
  if (options.on_preemption == OnPreemption::kSaveAndExit) {
    if (project_.project_dir.empty() || !project_.automatic_checkpoint_naming) {
      throw Error(ErrorCode::kInvalidArgument,
                  "on_preemption = kSaveAndExit has no place to save to",
                  "set project_dir and project_config.automatic_checkpoint_naming");
    }
    preemption_.emplace(prepared_.state.process_group());
  }
  if (WorkerChannel* const channel = supervisor_channel())
    channel->declare(WorkerAbility::kHandlesPreemption);
}

void Checkpointing::at_boundary() {
  if (preemption_ && preemption_->is_due(is_preemption_asked())) save_and_exit();
  if (project_.memory_checkpoint_every == 0) return;
  const StepSpan span(StepPart::kIo);
  if (++steps_since_memory_ >= project_.memory_checkpoint_every) save_in_memory();
}

void Checkpointing::save_and_exit() {
  const Logger& logger = prepared_.logger;
  try {
    std::ignore = finish_save();
  } catch (const Error& error) {  // on all ranks
    logger.warning(std::string("the save before this one failed: ") + error.what());
  }
  tracking::TrackerWriter& trackers = tracking::TrackerWriter::of_process();
  trackers.flush(std::chrono::steady_clock::now() + tracking::kFlushLimit);
  const CheckpointInfo saved = save({});
  const int code = prepared_.options.preemption_exit_code;
  logger.warning("preempted: saved " + saved.folder.string() + ", ending with exit code " +
                 std::to_string(code));
  if (WorkerChannel* const channel = supervisor_channel())
    channel->mark_saved(static_cast<std::uint64_t>(saved.step));
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  // Not exit(): the threads of the process group and of data loaders are still there.
  std::quick_exit(code);
}

// ---- on disk

CheckpointSeries& Checkpointing::series() {
  if (series_) return *series_;
  if (project_.project_dir.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "checkpoints without a folder need a project",
                "set AcceleratorOptions.project_dir and "
                "project_config.automatic_checkpoint_naming, or name a folder");
  }
  series_.emplace(CheckpointSeriesOptions{
      .folder = series_folder_,
      .total_limit = project_.total_limit,
      .iteration = project_.iteration,
      .restart_count = std::max(prepared_.state.restart_count(), has_gone_on_ ? 1 : 0),
      .save_on_each_node = project_.save_on_each_node});
  return *series_;
}

checkpoint::DiskMark Checkpointing::newest_on_disk() {
  if (project_.project_dir.empty()) return {};
  if (!newest_on_disk_) {
    const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&] {
      checkpoint::DiskMark newest;
      if (prepared_.state.process_index() == 0) {
        for (const CheckpointInfo& info : series().complete()) {
          if (info.iteration > newest.number) newest = {info.iteration, info.generation};
        }
      }
      return std::to_string(newest.number) + " " + std::to_string(newest.generation);
    }));
    const std::string& first = said.front();
    newest_on_disk_ = {std::stoll(first), std::stoll(first.substr(first.find(' ')))};
  }
  checkpoint::DiskMark newest = *newest_on_disk_;
  // One that is being written in the background is older than what comes after it. Its generation is the series', which may
  // be above the count of restarts.
  if (saving_) {
    newest.number = std::max(newest.number, series().iteration() - 1);
    newest.generation = std::max(newest.generation, checkpoint::background_saves().generation());
  }
  return newest;
}

CheckpointInfo Checkpointing::save(const std::filesystem::path& folder,
                                   const SaveStateOptions& files) {
  std::ignore = finish_save();
  CheckpointInfo saved;
  const auto save = [&](const CheckpointObjects& objects) {
    saved = is_numbered(folder) ? series().save(objects, training_.num_batches(), files)
                                : save_checkpoint(folder, objects, save_options(files));
  };
  content_.save(SaveTo::kDisk, save, files);
  newest_on_disk_.reset();
  commit(saved);
  return saved;
}

void Checkpointing::begin_save(const std::filesystem::path& folder, const SaveStateOptions& files) {
  std::ignore = finish_save();
  const auto begin = [&](const CheckpointObjects& objects) {
    saving_ = is_numbered(folder) ? series().begin_save(objects, training_.num_batches(), files)
                                  : async_save_checkpoint(folder, objects, save_options(files));
  };
  content_.save(SaveTo::kDisk, begin, files);
}

// Ranks may know different things of its end: what is thrown is agreed on.
std::optional<CheckpointInfo> Checkpointing::finish_save() {
  if (!saving_) return std::nullopt;
  AsyncSave ended = *std::exchange(saving_, std::nullopt);
  newest_on_disk_.reset();
  std::ignore = checkpoint::background_saves().end(*checkpoint::current_ranks());
  CheckpointInfo saved = ended.wait();
  if (saved.folder.empty())
    return std::nullopt;  // its error was thrown by a save that did not go through here
  commit(saved);
  return saved;
}

SaveOptions Checkpointing::save_options(const SaveStateOptions& files) const {
  return {.step = training_.num_batches(),
          .generation = prepared_.state.restart_count(),
          .save_on_each_node = project_.save_on_each_node,
          .files = files};
}

// One rank of each node speaks for it. What it is told holds for all: a refusal fails the save on
// every rank. A supervisor that does not answer is no reason to end a run whose checkpoint is
// complete.
void Checkpointing::commit(CheckpointInfo& checkpoint) const {
  const std::unique_ptr<checkpoint::RankExchange> ranks = checkpoint::current_ranks();
  const auto tokens = or_throw(checkpoint::agree(*ranks, [&]() -> std::string {
    if (ranks->local_rank() != 0) return "";
    return commit_here(checkpoint, prepared_.logger);
  }));
  checkpoint.commit_token = tokens[static_cast<std::size_t>(ranks->rank() - ranks->local_rank())];
}

CheckpointInfo Checkpointing::load(const std::filesystem::path& folder,
                                   const LoadStateOptions& options) {
  const auto load = [&](const CheckpointObjects& objects) {
    if (folder.empty()) return series().load_newest(objects);
    if (!project_.project_dir.empty()) return series().load(folder, objects);
    return load_checkpoint(folder, objects);
  };
  const auto report = load_when_saved(load, options);
  return take_over(*report);
}

std::optional<LoadReport> Checkpointing::load_when_saved(const CheckpointContent::Load& load,
                                                         const LoadStateOptions& options) {
  std::ignore = finish_save();
  return content_.load(load, options);
}

// What was loaded decides where the counts of the loop go on.
const CheckpointInfo& Checkpointing::take_over(const LoadReport& report) {
  for (const std::string& notice : report.notices) prepared_.logger.warning(notice);
  training_.go_on_from(report.checkpoint.step);
  return report.checkpoint;
}

std::optional<CheckpointInfo> Checkpointing::begin_run(RunStart start) {
  std::ignore = series();  // there is a project
  std::ignore = finish_save();
  std::optional<LoadReport> report;
  const bool goes_on = start == RunStart::kResume || is_restarted();
  if (goes_on) {
    report = load_from_memory(DiskCounts::kYes);
    if (!report) {
      report = load_when_saved([series = &series()](const CheckpointObjects& objects) {
        return series->load_newest_if_any(objects);
      });
    }
  } else if (start == RunStart::kFirst) {
    series().refuse_present();
  } else {
    series().remove_all();
  }
  reserve_memory();
  if (report) return take_over(*report);
  if (goes_on) {
    prepared_.logger.warning("there is no complete checkpoint in " + series().folder().string() +
                             ": starting from the beginning");
  }
  return std::nullopt;
}

// ---- in memory

checkpoint::MemoryCheckpoints* Checkpointing::memory() {
  if (looked_for_memory_) return memory_.get();
  memory_keeper_ = checkpoint::supervisor_memory();
  // All ranks have one, or none does: who has not would leave the others waiting.
  const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    return memory_keeper_ == nullptr ? "none" : "";
  }));
  looked_for_memory_ = true;
  if (std::find(said.begin(), said.end(), "none") != said.end()) {
    memory_keeper_.reset();
    return nullptr;
  }
  checkpoint::MemoryCheckpoints::Hooks hooks;
  hooks.on_size = [this](const std::string& text) {
    prepared_.logger.warning(text, {.main_process_only = false});
  };
  memory_ = std::make_unique<checkpoint::MemoryCheckpoints>(*memory_keeper_, std::move(hooks));
  return memory_.get();
}

bool Checkpointing::save_in_memory() {
  steps_since_memory_ = 0;
  checkpoint::MemoryCheckpoints* const checkpoints = memory();
  if (checkpoints == nullptr) {
    prepared_.logger.warning_once(
        "there are no in-memory checkpoints: no launcher holds memory for this process (start it "
        "with accel-launch)");
    return false;
  }
  const checkpoint::DiskMark disk = newest_on_disk();
  content_.save(SaveTo::kMemory, [&](const CheckpointObjects& objects) {
    std::ignore = checkpoints->save(*checkpoint::current_ranks(),
                                    objects,
                                    {.step = training_.num_batches(),
                                     .generation = prepared_.state.restart_count(),
                                     .newest_on_disk = disk});
  });
  return true;
}

// Nodes that come and go are no failure and no restart, and what the ranks before them have saved is not to be lost. Whoever
// knew that the job has begun may have gone with its node, so the number of the generation alone is enough: it begins at 0 or,
// over nodes, at 1, and only grows. The notes count where it has begun anew all the same.
bool Checkpointing::is_restarted() {
  constexpr std::uint64_t kFirstOverNodes = 1;
  const auto* const text = std::getenv("ACCEL_GENERATION");
  const std::uint64_t generation = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  if (prepared_.state.restart_count() > 0 || generation > kFirstOverNodes) return true;
  checkpoint::MemoryCheckpoints* const checkpoints = memory();
  return checkpoints != nullptr &&
         checkpoints->has_begun_before(*checkpoint::current_ranks(), generation + 1);
}

void Checkpointing::reserve_memory() {
  if (project_.memory_checkpoint_every == 0) return;
  checkpoint::MemoryCheckpoints* const checkpoints = memory();
  if (checkpoints == nullptr) return;  // the first save says so
  const AcceleratorState& state = prepared_.state;
  // Of optimizers that are copies, the ranks of the node share the states, or the first keeps them.
  const bool shares = !content_.replicas().empty();
  const auto sharers = static_cast<std::uint64_t>(state.local_num_processes());
  std::uint64_t expected = 0;
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) {
    const std::uint64_t bytes = checkpoint::expected_state_bytes(optimizer.optimizer());
    if (Preparation::gate_of(optimizer) != nullptr) {
      expected += bytes;
    } else if (shares) {
      expected += (bytes + sharers - 1) / sharers;
    } else if (state.local_process_index() == 0) {
      expected += bytes;
    }
  }
  content_.save(SaveTo::kMemory, [&](const CheckpointObjects& objects) {
    checkpoints->reserve(*checkpoint::current_ranks(), objects, expected);
  });
}

std::optional<CheckpointInfo> Checkpointing::load_in_memory() {
  const std::optional<LoadReport> report = load_from_memory(DiskCounts::kNo);
  if (!report) return std::nullopt;
  return take_over(*report);
}

std::optional<LoadReport> Checkpointing::load_from_memory(DiskCounts disk) {
  if (!is_restarted()) return std::nullopt;
  checkpoint::MemoryCheckpoints* const checkpoints = memory();
  if (checkpoints == nullptr) return std::nullopt;
  const auto ranks = checkpoint::current_ranks();
  const checkpoint::MemoryCheckpoints::Found found = checkpoints->find(*ranks);
  std::string why_not = found.choice.why_not;
  std::optional<LoadReport> report;
  if (found.choice.stamp && disk == DiskCounts::kYes) {
    const checkpoint::DiskMark newest = newest_on_disk();
    if (newest.is_newer_than(found.newest_on_disk))
      why_not = "checkpoint_" + std::to_string(newest.number) + " on disk is newer";
  }
  if (why_not.empty()) {
    report = load_when_saved([&](const CheckpointObjects& objects) {
      return checkpoints->load(*ranks, objects, why_not);
    });
  }
  if (report) {
    // The series may have been made for a run that begins.
    has_gone_on_ = true;
    series_.reset();
    prepared_.logger.warning("going on from memory: step " +
                             std::to_string(report->checkpoint.step));
  } else if (project_.memory_checkpoint_every > 0 || found.choice.stamp) {
    prepared_.logger.warning("not going on from memory: " + why_not);
  }
  return report;
}

}  // namespace accel::detail
