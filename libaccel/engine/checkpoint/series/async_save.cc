// Saving in the background.
//
// The thread that trains does what needs the objects: it prepares the folder, runs hooks, collects what is to be written and
// copies it. A thread of its own then writes, agrees with the same threads of the other ranks (store_ranks.h) and commits: the
// same phases as those of a save in the foreground, and so the same promises.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include <accel/async_save.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/result.h>
#include <accel/state.h>

#include "libaccel/engine/checkpoint/ranks/store_ranks.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"

namespace accel {

using checkpoint::PreparedSave;
using checkpoint::RankExchange;

// A thread that waits until start() is called; a task that is not started does nothing.
class AsyncSave::Task {
 public:
  Task(std::unique_ptr<PreparedSave> save,
       std::unique_ptr<RankExchange> ranks,
       std::stop_source stop,
       std::function<void()> when_complete)
      : stop_(std::move(stop)),
        thread_([this,
                 save = std::move(save),
                 ranks = std::move(ranks),
                 when_complete = std::move(when_complete),
                 is_wanted = is_wanted_.get_future()]() mutable {
          if (!is_wanted.get()) return;
          Result<CheckpointInfo> outcome = to_result([&] { return save->finish(*ranks); });
          save.reset();  // the copies of the state
          if (outcome && when_complete) when_complete();
          const std::scoped_lock lock(mutex_);
          outcome_ = std::move(outcome);
        }) {}
  ~Task() {
    if (!is_started_) is_wanted_.set_value(false);
    if (thread_.joinable()) thread_.join();
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Once.
  void start() {
    is_started_ = true;
    is_wanted_.set_value(true);
  }
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
  std::promise<bool> is_wanted_;
  bool is_started_ = false;
  mutable std::mutex mutex_;
  std::optional<Result<CheckpointInfo>> outcome_;
  bool is_told_ = false;
  std::thread thread_;
};

AsyncSave::AsyncSave(std::shared_ptr<Task> task) : task_(std::move(task)) {}

AsyncSave::~AsyncSave() {
  if (task_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) task_->give_up();
  try {
    task_->take();
  } catch (const Error& error) {
    const std::string text = std::string("a save in the background failed: ") + error.what();
    if (PartialState::initialized()) {
      get_logger("accel.checkpoint").error(text);
    } else {  // a logger needs to know the ranks
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  }
}

bool AsyncSave::is_done() const {
  return task_ == nullptr || task_->is_done();
}

CheckpointInfo AsyncSave::wait() {
  return task_ == nullptr ? CheckpointInfo{} : task_->take();
}

AsyncSave& AsyncSave::operator=(AsyncSave&& other) noexcept {
  AsyncSave taken(std::move(other));
  std::swap(task_, taken.task_);
  return *this;
}

AsyncSave async_save_checkpoint(const std::filesystem::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options) {
  return checkpoint::background_saves().begin(checkpoint::real_file_system(),
                                              *checkpoint::current_ranks(),
                                              checkpoint::ranks_of_the_store,
                                              folder,
                                              objects,
                                              options);
}

namespace checkpoint {

void BackgroundSaves::wait() {
  std::shared_ptr<AsyncSave::Task> task;
  {
    const std::scoped_lock lock(mutex_);
    task = current_;
  }
  if (task != nullptr) task->join();
}

std::int64_t BackgroundSaves::end(RankExchange& ranks) {
  std::shared_ptr<AsyncSave::Task> task;
  {
    const std::scoped_lock lock(mutex_);
    task = std::exchange(current_, nullptr);
  }
  const auto numbers = or_throw(agree(ranks, [&] {
    if (task != nullptr) (void)task->take();
    return std::to_string(num_saves_);
  }));
  std::int64_t next = 0;
  for (const std::string& number : numbers)
    next = std::max(next, static_cast<std::int64_t>(std::stoll(number)));
  return next;
}

AsyncSave BackgroundSaves::begin(FileSystem& file_system,
                                 RankExchange& ranks,
                                 const MakeRanks& make_ranks,
                                 const std::filesystem::path& folder,
                                 const CheckpointObjects& objects,
                                 const SaveOptions& options,
                                 Existing existing,
                                 std::function<void()> when_complete) {
  const std::int64_t number = end(ranks);
  num_saves_ = number + 1;  // used up even by a save that does not come to be
  auto save =
      std::make_unique<PreparedSave>(file_system, ranks, folder, objects, options, existing);
  save->copy_tensors(ranks, copies_);
  std::stop_source stop;
  std::shared_ptr<AsyncSave::Task> task;
  try {
    agree_on(ranks, [&] {
      auto own_ranks = make_ranks("accel/checkpoint/" + std::to_string(number), stop.get_token());
      task = std::make_shared<AsyncSave::Task>(
          std::move(save), std::move(own_ranks), stop, std::move(when_complete));
    });
  } catch (...) {
    // Those that other ranks have started would wait for this one, which failed or saw one die in here.
    stop.request_stop();
    throw;
  }
  // Not before: a thread that copies takes the ranks' time to agree.
  task->start();
  const std::scoped_lock lock(mutex_);
  current_ = task;
  generation_ = options.generation;
  return AsyncSave(std::move(task));
}

std::unique_ptr<RankExchange> ranks_of_the_store(const std::string& name, std::stop_token stop) {
  constexpr std::chrono::minutes kPatience{30};
  return store_ranks(name, kPatience, std::move(stop));
}

BackgroundSaves& background_saves() {
  static BackgroundSaves saves;
  return saves;
}

}  // namespace checkpoint
}  // namespace accel
