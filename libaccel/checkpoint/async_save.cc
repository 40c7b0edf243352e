// Saving in the background.
//
// The thread that trains does what needs the objects: it prepares the folder, runs hooks, collects what is to be written and
// copies it. A thread of its own then writes, agrees with the same threads of the other ranks (store_ranks.h) and commits: the
// same phases as those of a save in the foreground, and so the same promises.

#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include <accel/async_save.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/result.h>

#include "libaccel/checkpoint/background_save.h"
#include "libaccel/checkpoint/checkpoint_writer.h"
#include "libaccel/checkpoint/store_ranks.h"

namespace accel {

using checkpoint::PreparedSave;
using checkpoint::RankExchange;

class AsyncSave::Task {
 public:
  Task(std::unique_ptr<PreparedSave> save,
       std::unique_ptr<RankExchange> ranks,
       std::stop_source stop)
      : stop_(std::move(stop)),
        thread_([this, save = std::move(save), ranks = std::move(ranks)]() mutable {
          Result<CheckpointInfo> outcome = to_result([&] { return save->finish(*ranks); });
          save.reset();  // the copies of the state
          const std::scoped_lock lock(mutex_);
          outcome_ = std::move(outcome);
        }) {}
  ~Task() {
    if (thread_.joinable()) thread_.join();
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] bool is_done() const {
    const std::scoped_lock lock(mutex_);
    return outcome_.has_value();
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }
  void give_up() { stop_.request_stop(); }

  // Waits; the error goes to who asks first.
  CheckpointInfo take() {
    join();
    if (!*outcome_ && !std::exchange(is_told_, true)) throw outcome_->error();
    return *outcome_ ? **outcome_ : CheckpointInfo{};
  }

 private:
  std::stop_source stop_;
  mutable std::mutex mutex_;
  std::optional<Result<CheckpointInfo>> outcome_;
  bool is_told_ = false;
  std::thread thread_;
};

namespace {

std::mutex current_mutex;

// The save that is under way, or whose error nobody has asked for. Kept here so that it outlives its handle.
std::shared_ptr<AsyncSave::Task>& current() {
  static std::shared_ptr<AsyncSave::Task> task;
  return task;
}

constexpr std::chrono::minutes kPatience{30};

}  // namespace

AsyncSave::AsyncSave(std::shared_ptr<Task> task) : task_(std::move(task)) {}

AsyncSave::~AsyncSave() {
  if (task_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) task_->give_up();
  try {
    task_->take();
  } catch (const Error& error) {
    get_logger("accel.checkpoint")
        .error(std::string("a save in the background failed: ") + error.what());
  }
}

bool AsyncSave::is_done() const {
  return task_ == nullptr || task_->is_done();
}

CheckpointInfo AsyncSave::wait() {
  return task_ == nullptr ? CheckpointInfo{} : task_->take();
}

AsyncSave async_save_checkpoint(const std::filesystem::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options) {
  checkpoint::wait_for_background_save(checkpoint::Earlier::kThrowItsError);
  static int num_saves = 0;  // the same on all ranks
  std::stop_source stop;
  auto ranks = checkpoint::store_ranks(
      "accel/checkpoint/" + std::to_string(num_saves++), kPatience, stop.get_token());
  auto save = std::make_unique<PreparedSave>(checkpoint::real_file_system(),
                                             *checkpoint::current_ranks(),
                                             folder,
                                             objects,
                                             options,
                                             checkpoint::Existing::kReplace);
  save->copy_tensors();
  auto task = std::make_shared<AsyncSave::Task>(std::move(save), std::move(ranks), std::move(stop));
  const std::scoped_lock lock(current_mutex);
  current() = task;
  return AsyncSave(std::move(task));
}

namespace checkpoint {

void wait_for_background_save(Earlier earlier) {
  std::shared_ptr<AsyncSave::Task> task;
  {
    const std::scoped_lock lock(current_mutex);
    task = current();
    if (earlier == Earlier::kThrowItsError) current() = nullptr;
  }
  if (task == nullptr) return;
  if (earlier == Earlier::kThrowItsError) {
    task->take();
  } else {
    task->join();
  }
}

}  // namespace checkpoint
}  // namespace accel
