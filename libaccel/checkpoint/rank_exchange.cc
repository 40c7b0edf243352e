// Agreement of the ranks, and the exchange over the process group.

#include "libaccel/checkpoint/rank_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <accel/result.h>
#include <accel/state.h>

#include "libaccel/process/process_group.h"

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
  GroupExchange(std::shared_ptr<ProcessGroup> group, int local_rank)
      : group_(std::move(group)), local_rank_(local_rank) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  int local_rank() const override { return local_rank_; }

  std::vector<std::string> all_gather(const std::string& mine) override {
    const at::Tensor my_size =
        at::zeros({1}, at::kLong).fill_(static_cast<std::int64_t>(mine.size()));
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& size : group_->all_gather(my_size, "checkpoint")) {
      sizes.push_back(*size.const_data_ptr<std::int64_t>());
    }
    at::Tensor padded = at::zeros({*std::max_element(sizes.begin(), sizes.end()) + 1}, at::kByte);
    std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
    std::vector<std::string> all;
    for (const at::Tensor& bytes : group_->all_gather(padded, "checkpoint")) {
      all.emplace_back(static_cast<const char*>(bytes.const_data_ptr()),
                       static_cast<size_t>(sizes[all.size()]));
    }
    return all;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  int local_rank_;
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
  if (!PartialState::initialized()) return std::make_unique<Alone>();
  std::shared_ptr<ProcessGroup> group = current_process_group();
  if (group == nullptr) return std::make_unique<Alone>();
  return std::make_unique<GroupExchange>(std::move(group), PartialState().local_process_index());
}

std::vector<std::string> Agreement::payloads_or_throw() && {
  if (failure) throw std::move(*failure);
  return std::move(payloads);
}

Agreement agree(RankExchange& ranks, const std::function<std::string()>& work) {
  const Result<std::string> outcome = to_result(work);
  const json mine =
      outcome ? json{{"payload", *outcome}} : json{{"error", encode(outcome.error())}};
  // Names of files need not be UTF-8; an error that shows one must still reach the others.
  const std::string text = mine.dump(-1, ' ', false, json::error_handler_t::replace);

  Agreement agreement;
  const std::vector<std::string> all = ranks.all_gather(text);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const json theirs = json::parse(all[rank]);
    if (const auto error = theirs.find("error"); error != theirs.end()) {
      agreement.failure = decode(*error);
      if (ranks.size() > 1)
        agreement.failure->while_doing("working on rank " + std::to_string(rank));
      agreement.payloads.clear();
      break;
    }
    agreement.payloads.push_back(theirs.at("payload").get<std::string>());
  }
  return agreement;
}

}  // namespace accel::checkpoint
