#include "libaccel/engine/checkpoint/ranks/store_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/text/first_line.h"
#include "runtime/text/seconds_text.h"

namespace accel::checkpoint {
namespace {

constexpr std::chrono::milliseconds kFirstQuestionPause{10};
constexpr std::chrono::milliseconds kLongestQuestionPause{250};
constexpr std::chrono::milliseconds kBetweenLooks{500};  // at ranks that have not spoken
// How long rank 0 stays for ranks that have not read the last round: it may host the store.
constexpr std::chrono::seconds kFarewell{10};

// This process, for ranks of the same node; empty where that cannot be told.
std::string process_text() {
  const Result<shm::NodeIdentity> node = shm::read_node_identity();
  if (!node) return "";
  const char* const test_node = std::getenv(shm::kTestNodeVariable);
  return shm::to_text(*node) + "/" + (test_node == nullptr ? "" : test_node) + " " +
         std::to_string(::getpid()) + " " + std::to_string(shm::start_time_of(::getpid()));
}

class StoreRanks final : public RankExchange {
 public:
  StoreRanks(const StorePlace& place,
             c10::intrusive_ptr<c10d::Store> store,
             std::string name,
             std::chrono::milliseconds patience,
             std::stop_token stop,
             const Pulse& pulse)
      : rank_(place.rank),
        size_(place.size),
        local_rank_(place.local_rank),
        store_(std::move(store)),
        name_(std::move(name)),
        patience_(patience),
        stop_(std::move(stop)),
        pulse_(pulse),
        own_process_(process_text()),
        beat_(store_, name_, rank_, size_, pulse) {
    store_->set(key("process", rank_),
                std::vector<std::uint8_t>(own_process_.begin(), own_process_.end()));
  }

  ~StoreRanks() override {
    try {
      store_->set(key("left", rank_), std::vector<std::uint8_t>{1});
      if (rank_ != 0) return;
      std::vector<std::string> keys;
      for (int rank = 0; rank < size_; ++rank) keys.push_back(key("left", rank));
      (void)are_there(keys, keys, kFarewell);
    } catch (const std::exception&) {
      // What there was to say has been said.
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  std::vector<std::string> all_gather(const std::string& mine) override {
    return in_round([&] {
      const std::vector<std::string> keys = keys_of_round();
      set(keys[static_cast<std::size_t>(rank_)], mine);
      wait_for(keys, keys);
      return get_all(keys);
    });
  }

  std::string decide(const std::string& mine, const Judge& judge) override {
    return in_round([&] {
      std::vector<std::string> keys = keys_of_round();
      const std::string answer_key = key_of_answer(round_);
      set(keys[static_cast<std::size_t>(rank_)], mine);
      if (rank_ == 0) {
        wait_for(keys, keys);
        std::string answer = judge(get_all(keys));
        set(answer_key, kAnswer + answer);
        return answer;
      }
      keys.front() = answer_key;  // what is awaited of rank 0
      wait_for({answer_key}, keys);
      return get_all({answer_key}).front().substr(1);
    });
  }

 private:
  static constexpr char kAnswer = '=';  // a value is never empty

  template <typename Round>
  std::invoke_result_t<Round> in_round(Round round) {
    try {
      auto result = round();
      // All have spoken in this round, so all have read the one before.
      if (round_ > 0) store_->deleteKey(key(round_ - 1, rank_));
      if (round_ > 0 && rank_ == 0) store_->deleteKey(key_of_answer(round_ - 1));
      ++round_;
      return result;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& cause) {
      throw Error(ErrorCode::kStoreUnreachable,
                  "lost the store while saving a checkpoint in the background",
                  "see why the process that hosts it ended")
          .with_detail("cause", first_line(cause.what()));
    }
  }

  void set(const std::string& name, const std::string& value) {
    store_->set(name, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  // In one request where the store knows such. Requires: they are there.
  [[nodiscard]] std::vector<std::string> get_all(const std::vector<std::string>& keys) {
    std::vector<std::string> values;
    if (store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(keys))
        values.emplace_back(value.begin(), value.end());
      return values;
    }
    for (const std::string& name : keys) {
      const std::vector<std::uint8_t> value = store_->get(name);
      values.emplace_back(value.begin(), value.end());
    }
    return values;
  }

  [[nodiscard]] std::vector<std::string> keys_of_round() const {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key(round_, rank));
    return keys;
  }
  [[nodiscard]] std::string key_of_answer(int round) const {
    return name_ + "/" + std::to_string(round) + "/answer";
  }
  [[nodiscard]] std::string key(const std::string& round, int rank) const {
    return name_ + "/" + round + "/" + std::to_string(rank);
  }
  [[nodiscard]] std::string key(int round, int rank) const {
    return key(std::to_string(round), rank);
  }

  // keys: by rank, what shows that a rank has done its part.
  void wait_for(const std::vector<std::string>& awaited, const std::vector<std::string>& keys) {
    if (are_there(awaited, keys, patience_)) return;
    if (stop_.stop_requested())
      throw Error(ErrorCode::kPeerLost, "the save in the background was given up");
    if (dead_ >= 0) {
      throw Error(ErrorCode::kPeerLost,
                  "rank " + std::to_string(dead_) + " died while a checkpoint was being written");
    }
    if (silent_) {
      throw Error(ErrorCode::kPeerLost,
                  "rank " + std::to_string(*silent_) + " gave no sign of life for " +
                      seconds_text(pulse_.longest_silence) +
                      " while a checkpoint was being written");
    }
    throw Error(ErrorCode::kPeerLost,
                "ranks did not finish writing a checkpoint within " + seconds_text(patience_) +
                    ": " + missing(keys));
  }

  // Waits for them; false when it took too long, is to stop or waits for a rank that is dead or silent.
  bool are_there(const std::vector<std::string>& awaited,
                 const std::vector<std::string>& keys,
                 std::chrono::milliseconds patience) {
    const auto begin = std::chrono::steady_clock::now();
    auto next_look = begin + kBetweenLooks;
    std::chrono::milliseconds pause = kFirstQuestionPause;
    std::unique_lock lock(mutex_);
    while (!store_->check(awaited)) {
      const auto now = std::chrono::steady_clock::now();
      if (now - begin > patience || stop_.stop_requested()) return false;
      if (now >= next_look) {
        // What it said before it died counts: looked at once more.
        if (is_one_dead(keys) && !store_->check({keys[dead_at()]})) return false;
        if (is_one_silent(keys)) return false;
        next_look = now + kBetweenLooks;
      }
      never_.wait_for(lock, stop_, pause, [] { return false; });
      pause = std::min(2 * pause, kLongestQuestionPause);
    }
    return true;
  }

  [[nodiscard]] std::size_t dead_at() const { return static_cast<std::size_t>(dead_); }

  // Whether a rank of this node that has not set its key lives no more. Of other nodes beats tell. Only of one that is
  // dead the store is asked: with many ranks it would hear of little else. Ranks of a node follow one another, so behind the
  // first of another node there is none of this one.
  bool is_one_dead(const std::vector<std::string>& keys) {
    dead_ = -1;
    for (int rank = rank_ - local_rank_; rank < size_ && dead_ < 0; ++rank) {
      if (!watched_.contains(rank) && !watch(rank)) continue;
      if (!on_this_node_.contains(rank)) break;
      if (processes_.is_alive(rank)) continue;
      if (!store_->check({keys[static_cast<std::size_t>(rank)]})) dead_ = rank;
    }
    return dead_ >= 0;
  }

  // Whether a rank that has not set its key is silent.
  bool is_one_silent(const std::vector<std::string>& keys) {
    silent_.reset();
    for (const int rank : beat_.silent_ranks()) {
      if (store_->check({keys.at(static_cast<std::size_t>(rank))})) continue;
      silent_ = rank;
      return true;
    }
    return false;
  }

  // False while that rank has not said who it is.
  bool watch(int rank) {
    const std::string name = key("process", rank);
    if (!store_->check({name})) return false;
    const std::vector<std::uint8_t> value = store_->get(name);
    std::istringstream words(std::string(value.begin(), value.end()));
    std::istringstream own_words(own_process_);
    std::string node;
    std::string own_node;
    shm::ProcessWatch::Process process;
    words >> node >> process.pid >> process.start_time;
    own_words >> own_node;
    watched_.insert(rank);
    if (node.empty() || node != own_node) return true;
    on_this_node_.insert(rank);
    processes_.watch(rank, process);
    return true;
  }

  // Of rank 0 the answer is missing as long as a report is.
  [[nodiscard]] std::string missing(const std::vector<std::string>& keys) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store_->check({keys[rank]})) ranks.push_back(static_cast<int>(rank));
    }
    const bool awaits_answer = keys.front() != key(round_, 0);
    if (awaits_answer && ranks.size() > 1) ranks.erase(ranks.begin());
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
  }

  int rank_;
  int size_;
  int local_rank_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::chrono::milliseconds patience_;
  std::stop_token stop_;
  Pulse pulse_;
  std::string own_process_;
  int round_ = 0;
  shm::ProcessWatch processes_;
  std::set<int> watched_;  // or of another node
  std::set<int> on_this_node_;
  int dead_ = -1;
  std::optional<int> silent_;
  std::mutex mutex_;
  std::condition_variable_any never_;
  StoreBeat beat_;
};

}  // namespace

std::unique_ptr<RankExchange> store_ranks(const std::string& name,
                                          std::chrono::milliseconds patience,
                                          std::stop_token stop,
                                          const Pulse& pulse) {
  if (!PartialState::initialized() || PartialState().num_processes() == 1) return current_ranks();
  const PartialState state;
  return store_ranks({.rank = state.process_index(),
                      .size = state.num_processes(),
                      .local_rank = state.local_process_index()},
                     PartialState::process_group()->store()->clone(),
                     name,
                     patience,
                     std::move(stop),
                     pulse);
}

std::unique_ptr<RankExchange> store_ranks(const StorePlace& place,
                                          c10::intrusive_ptr<c10d::Store> store,
                                          const std::string& name,
                                          std::chrono::milliseconds patience,
                                          std::stop_token stop,
                                          const Pulse& pulse) {
  return std::make_unique<StoreRanks>(
      place, std::move(store), name, patience, std::move(stop), pulse);
}

}  // namespace accel::checkpoint
