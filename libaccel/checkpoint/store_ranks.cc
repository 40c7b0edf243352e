#include "libaccel/checkpoint/store_ranks.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/process/process_group.h"

namespace accel::checkpoint {
namespace {

constexpr std::chrono::milliseconds kPause{10};
// How long rank 0 stays for ranks that have not read the last round: it may host the store.
constexpr std::chrono::seconds kFarewell{10};

class StoreRanks final : public RankExchange {
 public:
  StoreRanks(const PartialState& state,
             c10::intrusive_ptr<c10d::Store> store,
             std::string name,
             std::chrono::milliseconds patience,
             std::stop_token stop)
      : rank_(state.process_index()),
        size_(state.num_processes()),
        local_rank_(state.local_process_index()),
        store_(std::move(store)),
        name_(std::move(name)),
        patience_(patience),
        stop_(std::move(stop)) {}

  ~StoreRanks() override {
    try {
      store_->set(key("left", rank_), std::vector<std::uint8_t>{1});
      if (rank_ != 0) return;
      std::vector<std::string> keys;
      for (int rank = 0; rank < size_; ++rank) keys.push_back(key("left", rank));
      (void)are_there(keys, kFarewell);
    } catch (const std::exception&) {
      // What there was to say has been said.
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  std::vector<std::string> all_gather(const std::string& mine) override {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key(round_, rank));
    std::vector<std::string> said;
    try {
      store_->set(keys[static_cast<std::size_t>(rank_)],
                  std::vector<std::uint8_t>(mine.begin(), mine.end()));
      wait_for(keys);
      for (const std::string& name : keys) {
        const std::vector<std::uint8_t> value = store_->get(name);
        said.emplace_back(value.begin(), value.end());
      }
      // All have spoken in this round, so all have read the one before.
      if (round_ > 0) store_->deleteKey(key(round_ - 1, rank_));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& cause) {
      throw Error(ErrorCode::kStoreUnreachable,
                  "lost the store while saving a checkpoint in the background",
                  "see why the process that hosts it ended")
          .with_detail("cause", first_line(cause.what()));
    }
    ++round_;
    return said;
  }

 private:
  [[nodiscard]] std::string key(const std::string& round, int rank) const {
    return name_ + "/" + round + "/" + std::to_string(rank);
  }
  [[nodiscard]] std::string key(int round, int rank) const {
    return key(std::to_string(round), rank);
  }

  void wait_for(const std::vector<std::string>& keys) {
    if (are_there(keys, patience_)) return;
    if (stop_.stop_requested())
      throw Error(ErrorCode::kPeerLost, "the save in the background was given up");
    throw Error(
        ErrorCode::kPeerLost,
        "ranks did not finish writing a checkpoint within " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_).count()) +
            " s: " + missing(keys));
  }

  // Waits for them; false when it took too long or is to stop.
  bool are_there(const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    std::unique_lock lock(mutex_);
    while (!store_->check(keys)) {
      if (std::chrono::steady_clock::now() > end || stop_.stop_requested()) return false;
      never_.wait_for(lock, stop_, kPause, [] { return false; });
    }
    return true;
  }

  [[nodiscard]] std::string missing(const std::vector<std::string>& keys) {
    std::string ranks;
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (store_->check({keys[rank]})) continue;
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return ranks;
  }

  int rank_;
  int size_;
  int local_rank_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::chrono::milliseconds patience_;
  std::stop_token stop_;
  int round_ = 0;
  std::mutex mutex_;
  std::condition_variable_any never_;
};

}  // namespace

std::unique_ptr<RankExchange> store_ranks(const std::string& name,
                                          std::chrono::milliseconds patience,
                                          std::stop_token stop) {
  if (!PartialState::initialized() || PartialState().num_processes() == 1) return current_ranks();
  return std::make_unique<StoreRanks>(
      PartialState(), current_process_group()->store()->clone(), name, patience, std::move(stop));
}

}  // namespace accel::checkpoint
