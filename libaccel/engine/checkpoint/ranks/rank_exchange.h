// RankExchange: how the ranks of a save or load agree on going on.
//
// A checkpoint is made in phases. In each one every rank does its part and then tells the others
// how it went; the phase has failed everywhere when it failed anywhere. So no rank waits for one
// that gave up, and all of them report the same first failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <accel/result.h>

namespace accel::checkpoint {

class RankExchange {
 public:
  virtual ~RankExchange() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Position among the ranks of this node.
  [[nodiscard]] virtual int local_rank() const = 0;
  // What each rank passed, by rank. Blocks until every rank has called it. Errors kPeerLost.
  [[nodiscard]] virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  // What `judge` makes of what each rank passed, by rank, on all ranks. It runs on rank 0, perhaps on others too: there it must
  // say the same. It throws nothing. Blocks and fails as all_gather(); with many ranks it moves far less.
  using Judge = std::function<std::string(const std::vector<std::string>&)>;
  [[nodiscard]] virtual std::string decide(const std::string& mine, const Judge& judge) {
    return judge(all_gather(mine));
  }
};

// Over the process group of the PartialState; a process alone when there is none.
[[nodiscard]] std::unique_ptr<RankExchange> current_ranks();

// Runs work() on this rank and learns how it went on all: what it returned, by rank, or the error of the lowest failing rank,
// which its context names. Requires: every rank calls it.
// Errors  kPeerLost; what work() throws becomes the failure.
[[nodiscard]] Result<std::vector<std::string>> agree(RankExchange& ranks,
                                                     const std::function<std::string()>& work);

// The same for work that returns nothing. Throws the error.
void agree_on(RankExchange& ranks, const std::function<void()>& work);

// The same for results that rank 0 alone needs: on other ranks they may be missing.
[[nodiscard]] Result<std::vector<std::string>> agree_for_rank_zero(
    RankExchange& ranks, const std::function<std::string()>& work);

}  // namespace accel::checkpoint
