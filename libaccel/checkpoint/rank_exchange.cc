// Agreement of the ranks, and the exchange over the process group.

#include "libaccel/checkpoint/rank_exchange.h"

#include <utility>

#include <nlohmann/json.hpp>

#include <accel/operations.h>
#include <accel/result.h>
#include <accel/state.h>

namespace accel::checkpoint {
namespace {

using nlohmann::json;

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

json encode(const Error& error) {
  return {{"code", static_cast<int>(error.code())},
          {"message", error.message()},
          {"remedy", error.remedy()},
          {"context", error.context()}};
}

Error decode(const json& text) {
  Error error(static_cast<ErrorCode>(text.at("code").get<int>()),
              text.at("message").get<std::string>(),
              text.at("remedy").get<std::string>());
  for (const json& step : text.at("context")) error.while_doing(step.get<std::string>());
  return error;
}

}  // namespace

std::unique_ptr<RankExchange> current_ranks() {
  // Not constructed here: that would join a process group nobody asked for.
  if (!PartialState::initialized() || PartialState().num_processes() == 1) {
    return std::make_unique<Alone>();
  }
  return std::make_unique<GroupExchange>();
}

std::vector<std::string> Agreement::payloads_or_throw() && {
  if (failure) throw std::move(*failure);
  return std::move(payloads);
}

namespace {

// What this rank tells the others.
std::string outcome_text(const std::function<std::string()>& work) {
  const Result<std::string> outcome = to_result(work);
  const json mine =
      outcome ? json{{"payload", *outcome}} : json{{"error", encode(outcome.error())}};
  // Names of files need not be UTF-8; an error that shows one must still reach the others.
  return mine.dump(-1, ' ', false, json::error_handler_t::replace);
}

Agreement agreement_of(const std::vector<std::string>& outcomes) {
  Agreement agreement;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const json theirs = json::parse(outcomes[rank]);
    if (const auto error = theirs.find("error"); error != theirs.end()) {
      agreement.failure = decode(*error);
      if (outcomes.size() > 1)
        agreement.failure->while_doing("working on rank " + std::to_string(rank));
      agreement.payloads.clear();
      break;
    }
    agreement.payloads.push_back(theirs.at("payload").get<std::string>());
  }
  return agreement;
}

}  // namespace

Agreement agree(RankExchange& ranks, const std::function<std::string()>& work) {
  return agreement_of(ranks.all_gather(outcome_text(work)));
}

Agreement agree_for_rank_zero(RankExchange& ranks, const std::function<std::string()>& work) {
  Agreement agreement;  // stays empty where the judge does not run
  const std::string failure =
      ranks.decide(outcome_text(work), [&](const std::vector<std::string>& outcomes) {
        agreement = agreement_of(outcomes);
        return agreement.failure ? encode(*agreement.failure).dump() : std::string();
      });
  if (!failure.empty()) agreement.failure = decode(json::parse(failure));
  return agreement;
}

}  // namespace accel::checkpoint
