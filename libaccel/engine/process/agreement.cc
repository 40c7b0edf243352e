// What a rank says: "=RESULT", or "!CODE MESSAGE REMEDY CONTEXT..." with a separator between them, the code by its number; all
// ranks run the same library.

#include "libaccel/engine/process/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <sstream>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <xxhash.h>

#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

constexpr std::int64_t kErrorBytes = 1024;
constexpr char kBetweenFields = '\x1e';  // in no message

}  // namespace

std::string outcome_text(const Result<std::string>& outcome) {
  if (outcome) return "=" + *outcome;
  const Error& error = outcome.error();
  std::string text = "!" + std::to_string(static_cast<int>(error.code()));
  for (const std::string& field : {error.message(), error.remedy()}) text += kBetweenFields + field;
  for (const std::string& step : error.context()) text += kBetweenFields + step;
  return text;
}

Result<std::string> outcome_of(std::string_view text) {
  if (text.starts_with('=')) return std::string(text.substr(1));
  std::vector<std::string> fields(3);
  std::istringstream stream{std::string(text.substr(1))};
  std::size_t count = 0;
  for (std::string field; std::getline(stream, field, kBetweenFields); ++count) {
    if (count == fields.size()) fields.emplace_back();
    fields[count] = std::move(field);
  }
  Error error(static_cast<ErrorCode>(std::stoi(fields[0])), fields[1], fields[2]);
  for (std::size_t i = 3; i < fields.size(); ++i) error.while_doing(fields[i]);
  return error;
}

std::vector<std::string> gather_texts(std::string_view text,
                                      std::int64_t longest,
                                      ProcessGroup& group,
                                      std::string_view operation) {
  if (longest == kAnyLength) {
    const at::Tensor own = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
    longest = group.all_gather(own, operation).max().item<std::int64_t>();
  }
  const auto bytes = static_cast<std::size_t>(longest);
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), std::min(text.size(), bytes));
  const at::Tensor all = group.all_gather(padded, operation);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, std::find(begin, begin + bytes, '\0'));
  }
  return texts;
}

Result<std::vector<std::string>> gather_results(const Result<std::string>& own,
                                                std::int64_t longest,
                                                ProcessGroup& group,
                                                std::string_view operation) {
  std::vector<std::string> texts = gather_texts(outcome_text(own), longest, group, operation);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    Result<std::string> outcome = outcome_of(texts[rank]);
    if (!outcome) {
      const Error& error = outcome.error();
      return Error(
          error.code(), "rank " + std::to_string(rank) + ": " + error.message(), error.remedy());
    }
    texts[rank] = *std::move(outcome);
  }
  return texts;
}

void jointly(const std::function<void()>& action, ProcessGroup* group, std::string_view operation) {
  if (group == nullptr) return action();
  std::exception_ptr thrown;
  const Result<std::string> own = to_result([&]() -> std::string {
    try {
      action();
    } catch (const std::exception&) {
      thrown = std::current_exception();
      throw;
    }
    return {};
  });
  const auto outcomes = gather_results(own, kErrorBytes, *group, operation);
  if (thrown) std::rethrow_exception(thrown);
  if (!outcomes) throw outcomes.error();
}

std::optional<Deviation> first_deviation(std::string_view text,
                                         Difference* difference,
                                         ProcessGroup& group,
                                         std::string_view operation) {
  at::Tensor digest = at::empty({2}, at::kLong);
  auto* values = digest.data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(XXH3_64bits(text.data(), text.size()));
  values[1] = static_cast<std::int64_t>(text.size());
  const at::Tensor digests = group.all_gather(digest, operation);
  const auto* all = digests.const_data_ptr<std::int64_t>();
  std::int64_t longest = 0;
  bool all_equal = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    all_equal = all_equal && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    longest = std::max(longest, all[2 * rank + 1]);
  }
  if (all_equal) return std::nullopt;
  const std::vector<std::string> texts = gather_texts(text, longest, group, operation);
  for (int rank = 1; rank < group.size(); ++rank) {
    if (auto found = difference(texts[0], texts[static_cast<std::size_t>(rank)]))
      return Deviation{rank, *std::move(found)};
  }
  return std::nullopt;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace accel
