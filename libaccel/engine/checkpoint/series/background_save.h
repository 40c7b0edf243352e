// BackgroundSaves: the save that is under way in this process; see accel/async_save.h.
//
// Ranks may know different things of an earlier save: one has asked for its error, another has not.
// So what is done about it is agreed on before anything else: all ranks throw it, or none does.
//
// Threads:  the thread that trains; wait() any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include <accel/async_save.h>

#include "libaccel/engine/checkpoint/files/copy_space.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"
#include "runtime/checkpoint/file_system.h"

namespace accel::checkpoint {

class BackgroundSaves {
 public:
  // Makes the exchange of a save's own thread, which ends its waits when the token says so. The name
  // is the same on all ranks and of no other save.
  using MakeRanks =
      std::function<std::unique_ptr<RankExchange>(const std::string& name, std::stop_token stop)>;

  // Returns when no save is under way. An error that nobody has asked for stays.
  void wait();
  // The same, but throws such an error, on all ranks when one of them has not asked for it. Returns
  // the number of the next save, which no rank has used. Requires: every rank calls it.
  std::int64_t end(RankExchange& ranks);

  // Begins another one when the earlier has ended. when_complete: called by the save's thread, throws nothing.
  // Errors  as async_save_checkpoint(), on all ranks; then nothing runs. Requires: every rank calls it.
  AsyncSave begin(FileSystem& file_system,
                  RankExchange& ranks,
                  const MakeRanks& make_ranks,
                  const std::filesystem::path& folder,
                  const CheckpointObjects& objects,
                  const SaveOptions& options,
                  Existing existing = Existing::kReplace,
                  std::function<void()> when_complete = {});

  // Of the save that was begun last. By the thread that trains.
  [[nodiscard]] std::int64_t generation() const noexcept { return generation_; }

  // The memory that is kept for copies, and giving it back when the last copy is written. By the thread that trains.
  [[nodiscard]] std::uint64_t kept_bytes() const { return copies_.bytes(); }
  void release_copies() { copies_.release(); }

 private:
  std::mutex mutex_;
  // Under way, or with an error that nobody has asked for. Kept here so that it outlives its handle.
  std::shared_ptr<AsyncSave::Task> current_;
  std::int64_t num_saves_ = 0;
  std::int64_t generation_ = 0;
  CopySpace copies_;  // of the objects' tensors, for one save at a time
};

// The exchange over the store of the process group, which waits for a rank for 30 minutes.
[[nodiscard]] std::unique_ptr<RankExchange> ranks_of_the_store(const std::string& name,
                                                               std::stop_token stop);

// Those of this process.
[[nodiscard]] BackgroundSaves& background_saves();

}  // namespace accel::checkpoint
