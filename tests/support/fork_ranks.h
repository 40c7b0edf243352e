// ForkRanks: the ranks of a checkpoint as forked processes, which a test can kill.
//
// The parent passes messages on between them. When a rank ends before the others are through, their next exchange throws
// kPeerLost, or, as when a whole job is killed, they are killed too. A rank may have a second exchange, for a save in the
// background.
//
// LibTorch is used in the children, so the parent must not have started threads of its own (OMP_NUM_THREADS=1).
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "runtime/unique_fd.h"

namespace accel::test {

enum class WhenOneIsKilled { kOthersNotice, kAllAreKilled };

// How the ranks have ended, in their order: of waitpid().
class RankStatuses {
 public:
  void add(int status) { statuses_.push_back(status); }
  [[nodiscard]] bool is_well(int rank) const {
    const int status = statuses_.at(static_cast<std::size_t>(rank));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  [[nodiscard]] bool is_killed(int rank) const {
    const int status = statuses_.at(static_cast<std::size_t>(rank));
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  // Whether all of them ended by themselves with 0.
  [[nodiscard]] bool are_all_well() const {
    for (int rank = 0; rank < static_cast<int>(statuses_.size()); ++rank) {
      if (!is_well(rank)) return false;
    }
    return true;
  }

 private:
  std::vector<int> statuses_;
};

class ForkRanks {
 public:
  // ranks_per_node: how many share a local_rank() of 0.
  explicit ForkRanks(int size, int ranks_per_node = 1 << 20)
      : size_(size), ranks_per_node_(ranks_per_node) {}

  // Calls body(ranks) in one process per rank. Returns when all have ended.
  RankStatuses run(WhenOneIsKilled when,
                   const std::function<void(checkpoint::RankExchange&)>& body) {
    return run_with(1, when, [&](const Exchanges& own) { body(*own[0]); });
  }

  // The same with a second exchange, for another thread of the rank.
  RankStatuses run(WhenOneIsKilled when,
                   const std::function<void(checkpoint::RankExchange& ranks,
                                            checkpoint::RankExchange& other)>& body) {
    return run_with(2, when, [&](const Exchanges& own) { body(*own[0], *own[1]); });
  }

 private:
  using Exchanges = std::vector<std::unique_ptr<checkpoint::RankExchange>>;

  RankStatuses run_with(std::size_t num_exchanges,
                        WhenOneIsKilled when,
                        const std::function<void(const Exchanges&)>& body) {
    std::vector<Hub> hubs(num_exchanges);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size_; ++rank) {
      std::vector<UniqueFd> own;
      for (Hub& hub : hubs) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
          throw Error(ErrorCode::kInternal, "no socket for a rank");
        own.emplace_back(ends[1]);
        hub.add(UniqueFd(ends[0]));
      }
      const pid_t child = ::fork();
      if (child == 0) {
        hubs.clear();
        Exchanges exchanges;
        for (const UniqueFd& end : own)
          exchanges.push_back(
              std::make_unique<Member>(rank, size_, rank % ranks_per_node_, end.get()));
        body(exchanges);
        ::_exit(0);
      }
      children.push_back(child);
    }
    const std::size_t ended = pass_on_until_one_ends(hubs);
    if (when == WhenOneIsKilled::kAllAreKilled && was_killed(children.at(ended))) {
      for (const pid_t child : children) ::kill(child, SIGKILL);  // none has been reaped yet
    }
    hubs.clear();
    return reap(children);
  }

  static bool send(int fd, const std::string& text) {
    const auto bytes = static_cast<std::uint64_t>(text.size());
    return write_all(fd, reinterpret_cast<const char*>(&bytes), sizeof bytes) &&
           write_all(fd, text.data(), text.size());
  }
  static bool write_all(int fd, const char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::send(fd, data, bytes, MSG_NOSIGNAL);
      if (n <= 0) return false;
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }
  static bool receive(int fd, std::string& text) {
    std::uint64_t bytes = 0;
    if (!read_all(fd, reinterpret_cast<char*>(&bytes), sizeof bytes)) return false;
    text.resize(bytes);
    return read_all(fd, text.data(), bytes);
  }
  static bool read_all(int fd, char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::read(fd, data, bytes);
      if (n <= 0) return false;
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }

  // The parent's ends of one exchange. It hears the ranks in their order: that one has ended is noticed when those before it
  // have said what they had to in this round.
  class Hub {
   public:
    void add(UniqueFd end) { ends_.push_back(std::move(end)); }
    [[nodiscard]] std::size_t next() const { return said_.size(); }
    [[nodiscard]] int next_fd() const { return ends_[next()].get(); }

    // Takes what the next rank says, and passes all on when it was the last. False: the rank has ended.
    bool take() {
      std::string text;
      if (!receive(next_fd(), text)) return false;
      said_.push_back(std::move(text));
      if (said_.size() < ends_.size()) return true;
      for (const UniqueFd& end : ends_) {
        for (const std::string& each : said_) send(end.get(), each);
      }
      said_.clear();
      return true;
    }

   private:
    std::vector<UniqueFd> ends_;
    std::vector<std::string> said_;
  };

  // Returns the rank that has ended.
  static std::size_t pass_on_until_one_ends(std::vector<Hub>& hubs) {
    for (;;) {
      std::vector<pollfd> polled;
      for (const Hub& hub : hubs) polled.push_back({hub.next_fd(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), -1);
      for (std::size_t i = 0; i < hubs.size(); ++i) {
        if (polled[i].revents != 0 && !hubs[i].take()) return hubs[i].next();
      }
    }
  }

  // Waits for its end, and leaves it to be reaped.
  static bool was_killed(pid_t child) {
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT) == 0 &&
           end.si_code == CLD_KILLED;
  }

  static RankStatuses reap(const std::vector<pid_t>& children) {
    RankStatuses statuses;
    for (const pid_t child : children) {
      int status = 0;
      if (::waitpid(child, &status, 0) != child)
        throw Error(ErrorCode::kInternal, "a rank's end was taken by another");
      statuses.add(status);
    }
    return statuses;
  }

  class Member final : public checkpoint::RankExchange {
   public:
    Member(int rank, int size, int local_rank, int fd)
        : rank_(rank), size_(size), local_rank_(local_rank), fd_(fd) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int local_rank() const override { return local_rank_; }
    std::vector<std::string> all_gather(const std::string& mine) override {
      std::vector<std::string> all(static_cast<std::size_t>(size_));
      bool is_alive = send(fd_, mine);
      for (std::string& text : all) is_alive = is_alive && receive(fd_, text);
      if (!is_alive) throw Error(ErrorCode::kPeerLost, "another rank has ended");
      return all;
    }

   private:
    int rank_;
    int size_;
    int local_rank_;
    int fd_;
  };

  int size_;
  int ranks_per_node_;
};

}  // namespace accel::test
