// ThreadRanks: the ranks of a checkpoint as threads of this process, for tests of what they agree
// on.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"

namespace accel::test {

class ThreadRanks {
 public:
  // ranks_per_node: how many share a local_rank() of 0.
  explicit ThreadRanks(int size, int ranks_per_node = 1 << 20)
      : size_(size), ranks_per_node_(ranks_per_node), slots_(static_cast<size_t>(size)) {}

  // Calls body(ranks) on one thread per rank and waits for all; a single rank is the caller's
  // thread.
  void run(const std::function<void(checkpoint::RankExchange&)>& body) {
    if (size_ == 1) {  // LibTorch starts a pool of threads for every thread that computes
      Member alone(*this, 0);
      return body(alone);
    }
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank, &body] {
        Member member(*this, rank);
        body(member);
      });
    }
  }

  // One rank, for a thread of the caller's. Not beyond the life of this object.
  std::unique_ptr<checkpoint::RankExchange> member(int rank) {
    return std::make_unique<Member>(*this, rank);
  }

 private:
  class Member final : public checkpoint::RankExchange {
   public:
    Member(ThreadRanks& group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return group_.size_; }
    int local_rank() const override { return rank_ % group_.ranks_per_node_; }
    std::vector<std::string> all_gather(const std::string& mine) override {
      return group_.all_gather(rank_, mine);
    }

   private:
    ThreadRanks& group_;
    int rank_;
  };

  std::vector<std::string> all_gather(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    slots_[static_cast<size_t>(rank)] = mine;
    const int round = round_;
    if (++arrived_ == size_) {
      gathered_ = slots_;
      arrived_ = 0;
      ++round_;
      everybody_.notify_all();
    }
    everybody_.wait(lock, [&] { return round_ != round; });
    return gathered_;  // the next round cannot end before this rank has joined it
  }

  int size_;
  int ranks_per_node_;
  std::mutex mutex_;
  std::condition_variable everybody_;
  std::vector<std::string> slots_;
  std::vector<std::string> gathered_;
  int arrived_ = 0;
  int round_ = 0;
};

}  // namespace accel::test
