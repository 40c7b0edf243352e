// The numbered checkpoints of a project.
//
// Which one is newest cannot be told by number or by time alone: a run may go on from an older
// checkpoint, and clocks differ between machines. Every run that continues in a folder therefore
// takes a generation above all that are there (and at least its restart count); within a generation
// the step decides, then the number.
//
// Only complete checkpoints are counted against the limit and only they are removed. One that is to
// go is renamed first: a removal that is cut short leaves no half checkpoint under a checkpoint's
// name. Folders that are not ours, and incomplete ones, are left for the user to look at.

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/files/folder_lock.h"
#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/checkpoint_reader.h"
#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"
#include "libaccel/engine/checkpoint/series/total_limit.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace accel {
namespace {

namespace fs = std::filesystem;
using checkpoint::RankExchange;

// Names in `folder` for which choose(name) holds; none when there is no such folder.
template <typename Choose>
std::vector<fs::path> entries(const fs::path& folder, Choose choose) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (choose(it->path().filename().string())) found.push_back(it->path());
  }
  return found;
}

std::vector<fs::path> numbered_folders(const fs::path& folder) {
  return entries(
      folder, [](const std::string& name) { return checkpoint::series_number(name).has_value(); });
}

// One above the highest number in use; 0 when there is none.
std::int64_t next_free_number(const fs::path& folder) {
  std::int64_t next = 0;
  for (const fs::path& path : numbered_folders(folder)) {
    next = std::max(next, *checkpoint::series_number(path.filename().string()) + 1);
  }
  return next;
}

auto age_of(const CheckpointInfo& info) {
  return std::tuple(-info.generation, -info.step, -info.iteration);
}

Error none_complete(const fs::path& folder, const std::vector<std::string>& notices) {
  Error error(ErrorCode::kCheckpointIncomplete,
              "there is no complete checkpoint in " + folder.string(),
              notices.empty()
                  ? "check project_dir, or start without loading"
                  : "restore one of them, or move them away to start from the beginning");
  for (const std::string& notice : notices) error.with_detail("passed over", notice);
  return error;
}

}  // namespace

void checkpoint::check_total_limit(std::optional<int> limit) {
  if (!limit || *limit >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "total_limit is " + std::to_string(*limit) + "; at least 1 checkpoint is kept",
              "set ProjectConfiguration.total_limit to 1 or more, or leave it out to keep all");
}

CheckpointSeries::CheckpointSeries(CheckpointSeriesOptions options)
    : options_(std::move(options)), file_system_(&checkpoint::real_file_system()) {
  checkpoint::check_total_limit(options_.total_limit);
  options_.folder = checkpoint::absolute_name(options_.folder);
}

CheckpointSeries::CheckpointSeries(CheckpointSeriesOptions options,
                                   checkpoint::FileSystem& file_system,
                                   RankExchange& ranks)
    : CheckpointSeries(std::move(options)) {
  file_system_ = &file_system;
  ranks_ = &ranks;
}

template <typename Use>
auto CheckpointSeries::with_ranks(Use use) {
  if (ranks_ != nullptr) return use(*ranks_);
  return use(*checkpoint::current_ranks());
}

// Settles the generation and, after a restart, the number. What a save that was killed left behind
// goes.
void CheckpointSeries::start_run() {
  if (!generation_) {
    std::int64_t generation = options_.restart_count;
    for (const CheckpointInfo& info : complete())
      generation = std::max(generation, info.generation + 1);
    generation_ = generation;
    if (options_.restart_count > 0) {
      options_.iteration = std::max(options_.iteration, next_free_number(options_.folder));
    }
  }
  for (const fs::path& left : entries(options_.folder, [](const std::string& name) {
         return name.starts_with(std::string(checkpoint::kTemporaryPrefix) +
                                 std::string(checkpoint::kSeriesPrefix));
       })) {
    // Not what another job is writing at this moment.
    if (const auto lock = checkpoint::FolderLock::take(left)) file_system_->remove(left);
  }
}

SaveOptions CheckpointSeries::next_save(RankExchange& ranks,
                                        std::int64_t step,
                                        const SaveStateOptions& files) {
  (void)checkpoint::background_saves().end(ranks);
  const int leader = checkpoint::leader_of(ranks, options_.save_on_each_node);
  // Ranks may see the folder at different moments; rank 0's generation is everybody's, and a
  // number must be free on the disk of every leader.
  const auto plans = or_throw(checkpoint::agree(ranks, [&]() -> std::string {
    if (ranks.rank() == leader) start_run();
    return nlohmann::json{generation_.value_or(0), options_.iteration}.dump();
  }));
  const auto plan = nlohmann::json::parse(plans.front());
  generation_ = plan.at(0).get<std::int64_t>();
  for (const std::string& other : plans) {
    options_.iteration =
        std::max(options_.iteration, nlohmann::json::parse(other).at(1).get<std::int64_t>());
  }
  return {.step = step,
          .generation = *generation_,
          .iteration = options_.iteration,
          .save_on_each_node = options_.save_on_each_node,
          .files = files};
}

fs::path CheckpointSeries::next_folder() const {
  return options_.folder / checkpoint::series_name(options_.iteration);
}

CheckpointInfo CheckpointSeries::save(const CheckpointObjects& objects,
                                      std::int64_t step,
                                      const SaveStateOptions& files) {
  return with_ranks([&](RankExchange& ranks) {
    const SaveOptions options = next_save(ranks, step, files);
    const int leader = checkpoint::leader_of(ranks, options_.save_on_each_node);
    const fs::path folder = next_folder();
    CheckpointInfo info;
    try {
      info = checkpoint::write_checkpoint(
          *file_system_, ranks, folder, objects, options, checkpoint::Existing::kRefuse);
    } catch (const Error& error) {
      // What fails after the rename leaves a folder: its number is used up. The next save asks the
      // leaders for the number.
      std::error_code ignored;
      if (error.code() != ErrorCode::kCheckpointExists && ranks.rank() == leader &&
          fs::exists(folder, ignored)) {
        ++options_.iteration;
      }
      throw;
    }
    ++options_.iteration;
    if (ranks.rank() == leader) prune();
    return info;
  });
}

AsyncSave CheckpointSeries::begin_save(const CheckpointObjects& objects,
                                       std::int64_t step,
                                       const SaveStateOptions& files) {
  return with_ranks([&](RankExchange& ranks) {
    const SaveOptions options = next_save(ranks, step, files);
    std::function<void()> when_complete;
    if (ranks.rank() == checkpoint::leader_of(ranks, options_.save_on_each_node))
      when_complete = [series = *this] { series.prune(); };
    AsyncSave saving = checkpoint::background_saves().begin(*file_system_,
                                                            ranks,
                                                            checkpoint::ranks_of_the_store,
                                                            next_folder(),
                                                            objects,
                                                            options,
                                                            checkpoint::Existing::kRefuse,
                                                            std::move(when_complete));
    ++options_.iteration;
    return saving;
  });
}

void CheckpointSeries::remove(const fs::path& checkpoint) const {
  const fs::path temporary = checkpoint::temporary_folder(checkpoint);
  file_system_->rename(checkpoint, temporary);
  file_system_->remove(temporary);
}

void CheckpointSeries::remove_all() {
  with_ranks([&](RankExchange& ranks) {
    return or_throw(checkpoint::agree(ranks, [&]() -> std::string {
      if (ranks.rank() == checkpoint::leader_of(ranks, options_.save_on_each_node)) {
        for (const fs::path& path : numbered_folders(options_.folder)) remove(path);
      }
      return "";
    }));
  });
}

void CheckpointSeries::refuse_present() {
  const std::vector<std::string> found = with_ranks([&](RankExchange& ranks) {
    return or_throw(checkpoint::agree(ranks, [&]() -> std::string {
      if (ranks.rank() != checkpoint::leader_of(ranks, options_.save_on_each_node)) return "";
      const std::vector<fs::path> present = numbered_folders(options_.folder);
      return present.empty() ? "" : present.front().string();
    }));
  });
  const auto first = std::find_if(
      found.begin(), found.end(), [](const std::string& folder) { return !folder.empty(); });
  if (first == found.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "an earlier run has left checkpoints in the project: " + *first,
      "resume that run (RunStart::kResume), overwrite it (RunStart::kAnew), or give this one a "
      "project_dir of its own");
}

void CheckpointSeries::prune() const {
  if (!options_.total_limit) return;
  try {
    const std::vector<CheckpointInfo> newest_first = complete();
    for (size_t i = static_cast<size_t>(*options_.total_limit); i < newest_first.size(); ++i) {
      remove(newest_first[i].folder);
    }
  } catch (const Error&) {
    // The new checkpoint is safe; one too many is no reason to end a training run. The next save
    // tries again.
  }
}

std::vector<CheckpointInfo> CheckpointSeries::complete(std::vector<std::string>* notices) const {
  std::vector<CheckpointInfo> found;
  for (const fs::path& path : numbered_folders(options_.folder)) {
    const auto pass_over = [&](const Error& error) {
      if (notices != nullptr) notices->push_back(path.filename().string() + ": " + error.message());
    };
    const Result<checkpoint::Manifest> manifest = checkpoint::read_manifest(path);
    if (!manifest) {
      if (manifest.error().code() == ErrorCode::kCheckpointVersion) throw manifest.error();
      pass_over(manifest.error());
      continue;
    }
    if (const Result<void> sizes = checkpoint::check_sizes(path, *manifest); !sizes) {
      pass_over(sizes.error());
      continue;
    }
    found.push_back({.folder = path,
                     .version = manifest->version,
                     .world_size = manifest->world_size,
                     .step = manifest->step,
                     .generation = manifest->generation,
                     .iteration = manifest->iteration});
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return age_of(a) < age_of(b);
  });
  return found;
}

std::optional<LoadReport> CheckpointSeries::load_first_good(RankExchange& ranks,
                                                            const CheckpointObjects& objects,
                                                            std::vector<std::string>& notices) {
  const auto lists = or_throw(checkpoint::agree(ranks, [&]() -> std::string {
    if (ranks.rank() != 0) return "{}";
    nlohmann::json names = nlohmann::json::array();
    std::vector<std::string> passed_over;
    for (const CheckpointInfo& info : complete(&passed_over)) {
      names.push_back(info.folder.filename().string());
    }
    return nlohmann::json{{"names", names}, {"passed_over", passed_over}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  }));
  const nlohmann::json found = nlohmann::json::parse(lists.front());
  notices = found.at("passed_over").get<std::vector<std::string>>();
  std::optional<Error> unreadable;
  for (const auto& name : found.at("names")) {
    try {
      LoadReport report = load_on(ranks, options_.folder / name.get<std::string>(), objects);
      report.notices.insert(report.notices.begin(), notices.begin(), notices.end());
      return report;
    } catch (const Error& error) {
      // Every rank gets the same error, so every rank goes on to the next one.
      const bool is_io = error.code() == ErrorCode::kFileIo;
      if (!is_io && error.code() != ErrorCode::kCheckpointIncomplete) throw;
      if (is_io && !unreadable) unreadable = error;
      notices.push_back(name.get<std::string>() + ": " + error.message());
    }
  }
  // A disk that cannot be read now is not an empty one: a run must not start anew because of it.
  if (unreadable) throw *std::move(unreadable);
  return std::nullopt;
}

LoadReport CheckpointSeries::load_newest(const CheckpointObjects& objects) {
  std::vector<std::string> notices;
  auto report =
      with_ranks([&](RankExchange& ranks) { return load_first_good(ranks, objects, notices); });
  if (!report) throw none_complete(options_.folder, notices);
  return *std::move(report);
}

std::optional<LoadReport> CheckpointSeries::load_newest_if_any(const CheckpointObjects& objects) {
  std::vector<std::string> notices;
  auto report =
      with_ranks([&](RankExchange& ranks) { return load_first_good(ranks, objects, notices); });
  // Nor must it because all are damaged: what they hold may be restored, and weeks of training with it.
  if (!report && !notices.empty()) throw none_complete(options_.folder, notices);
  if (!report) options_.iteration = std::max(options_.iteration, next_free_number(options_.folder));
  return report;
}

LoadReport CheckpointSeries::load(const fs::path& folder, const CheckpointObjects& objects) {
  return with_ranks([&](RankExchange& ranks) { return load_on(ranks, folder, objects); });
}

LoadReport CheckpointSeries::load_on(RankExchange& ranks,
                                     const fs::path& folder,
                                     const CheckpointObjects& objects) {
  LoadReport report = checkpoint::read_checkpoint(ranks, folder, objects);
  std::int64_t generation = std::max(options_.restart_count, report.checkpoint.generation + 1);
  for (const CheckpointInfo& info : complete())
    generation = std::max(generation, info.generation + 1);
  generation_ = generation;
  options_.iteration = std::max(options_.iteration, next_free_number(options_.folder));
  return report;
}

}  // namespace accel
