// ShmRanks: the ranks of a group in shared memory as threads of a test, or as child processes that can be killed.
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::test {

inline constexpr std::size_t kShmSlot = 4096;  // small, so that little data takes many steps

// The ranks as threads: what each does, with the group it has joined.
class ShmRanks {
 public:
  explicit ShmRanks(int world_size, int spins = 100, std::size_t slot_bytes = kShmSlot)
      : shape_{.world_size = world_size, .slot_bytes = slot_bytes},
        spins_(spins),
        memory_(or_throw(shm::GroupMemory::create(shape_))) {}

  // The same ranks, which copy straight from so many bytes on.
  ShmRanks straight_from(std::size_t bytes) && {
    straight_bytes_ = bytes;
    return std::move(*this);
  }

  shm::GroupOptions options(int rank) const {
    return {.rank = rank,
            .shape = shape_,
            .join_timeout = std::chrono::minutes(1),
            .timeout = std::chrono::minutes(1),
            .spins = spins_,
            .straight_bytes = straight_bytes_};
  }
  std::unique_ptr<shm::ShmGroup> join(int rank) const {
    return or_throw(shm::ShmGroup::join(memory_, options(rank)));
  }
  const UniqueFd& memory() const { return memory_; }

  void run(const std::function<void(shm::ShmGroup&)>& body) const {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < shape_.world_size; ++rank) {
      threads.emplace_back([this, rank, &body] {
        const auto group = join(rank);
        body(*group);
      });
    }
  }

 private:
  shm::GroupShape shape_;
  int spins_;
  std::size_t straight_bytes_ = shm::GroupOptions().straight_bytes;
  UniqueFd memory_;
};

template <typename T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <typename T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

inline std::vector<std::span<const std::byte>> sources_of(
    const std::vector<std::vector<float>>& parts) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& part : parts) spans.emplace_back(bytes_of(part), part.size() * sizeof(float));
  return spans;
}
inline std::vector<std::span<std::byte>> targets_of(std::vector<std::vector<float>>& parts) {
  std::vector<std::span<std::byte>> spans;
  for (auto& part : parts) spans.emplace_back(bytes_of(part), part.size() * sizeof(float));
  return spans;
}

inline shm::TransferPtr letter_to(int rank, std::vector<float>& values, int tag = 0) {
  return std::make_shared<shm::Transfer>(shm::Transfer{.is_sent = true,
                                                       .peer = rank,
                                                       .tag = tag,
                                                       .data = bytes_of(values),
                                                       .bytes = values.size() * sizeof(float)});
}
inline shm::TransferPtr letter_from(int rank, std::vector<float>& values, int tag = 0) {
  shm::TransferPtr transfer = letter_to(rank, values, tag);
  transfer->is_sent = false;
  return transfer;
}

// A child process that joins as `rank`, says so, does `body` and then waits to be killed.
class ShmChildRank {
 public:
  ShmChildRank(const ShmRanks& ranks, int rank, const std::function<void(shm::ShmGroup&)>& body) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto group = ranks.join(rank);
      (void)!::write(ready[1], "r", 1);
      body(*group);
      for (;;) ::pause();
    }
    ready_ = UniqueFd(ready[0]);
    ::close(ready[1]);
  }
  ShmChildRank(const ShmChildRank&) = delete;
  ShmChildRank& operator=(const ShmChildRank&) = delete;
  ~ShmChildRank() { kill(); }

  void wait_until_joined() const {
    char byte = 0;
    EXPECT_EQ(::read(ready_.get(), &byte, 1), 1);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd ready_;
};

}  // namespace accel::test
