#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"

#include <tuple>
#include <utility>

#include <accel/operations.h>
#include <accel/result.h>
#include <accel/state.h>

#include "libaccel/engine/process/agreement.h"

namespace accel::checkpoint {
namespace {

class Alone final : public RankExchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  std::vector<std::string> all_gather(const std::string& mine) override { return {mine}; }
};

class GroupExchange final : public RankExchange {
 public:
  int rank() const override { return state_.process_index(); }
  int size() const override { return state_.num_processes(); }
  int local_rank() const override { return state_.local_process_index(); }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return detail::CollectiveCall("checkpoint").gather_bytes(mine);
  }

 private:
  PartialState state_;
};

}  // namespace

std::unique_ptr<RankExchange> current_ranks() {
  // Not constructed here: that would join a process group nobody asked for.
  if (!PartialState::initialized() || PartialState().num_processes() == 1) {
    return std::make_unique<Alone>();
  }
  return std::make_unique<GroupExchange>();
}

namespace {

using Agreement = Result<std::vector<std::string>>;

Agreement agreement_of(std::vector<std::string> outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    Result<std::string> theirs = outcome_of(outcomes[rank]);
    if (!theirs && outcomes.size() > 1)
      theirs.error().while_doing("working on rank " + std::to_string(rank));
    if (!theirs) return std::move(theirs).error();
    outcomes[rank] = *std::move(theirs);
  }
  return outcomes;
}

}  // namespace

Agreement agree(RankExchange& ranks, const std::function<std::string()>& work) {
  return agreement_of(ranks.all_gather(outcome_text(to_result(work))));
}

void agree_on(RankExchange& ranks, const std::function<void()>& work) {
  std::ignore = or_throw(agree(ranks, [&]() -> std::string {
    work();
    return {};
  }));
}

Agreement agree_for_rank_zero(RankExchange& ranks, const std::function<std::string()>& work) {
  std::vector<std::string> results;  // stays empty where the judge does not run
  const auto judge = [&](const std::vector<std::string>& outcomes) -> std::string {
    Agreement agreement = agreement_of(outcomes);
    if (!agreement) return outcome_text(std::move(agreement).error());
    results = *std::move(agreement);
    return outcome_text(std::string());
  };
  const auto verdict = outcome_of(ranks.decide(outcome_text(to_result(work)), judge));
  if (!verdict) return verdict.error();
  return results;
}

}  // namespace accel::checkpoint
