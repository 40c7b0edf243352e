#include "train/generation/decoding.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace accel::train {
namespace {

std::int64_t length_of(const Sequence& sequence) {
  return static_cast<std::int64_t>(sequence.tokens.size());
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kEndToken:
      return "eos";
    case Finish::kLength:
      return "length";
    case Finish::kFullCache:
      return "cache";
    case Finish::kError:
      break;
  }
  return "error";
}

std::int64_t most_lanes(std::int64_t sequences, std::int64_t at_once, std::int64_t rows) {
  const std::int64_t needed = sequences / rows + (sequences % rows == 0 ? 0 : 1);
  return std::min(std::max<std::int64_t>(1, at_once / rows), needed);
}

std::int64_t bytes_for_weights(std::int64_t available,
                               std::int64_t lanes,
                               std::int64_t cache_bytes) {
  const std::int64_t usable = available / 10 * 9;
  if (cache_bytes > usable / lanes) return 0;
  return usable - lanes * cache_bytes;
}

std::optional<Finish> StopRule::finish_of(const Sequence& sequence) const {
  if (std::ranges::find(end_tokens, sequence.tokens.back()) != end_tokens.end())
    return Finish::kEndToken;
  if (std::ssize(sequence.generated()) >= max_new_tokens) return Finish::kLength;
  if (places >= 0 && length_of(sequence) >= places) return Finish::kFullCache;
  return std::nullopt;
}

PassPlanner::PassPlanner(const std::vector<Sequence>& sequences,
                         const ModelShape& shape,
                         std::int64_t at_once,
                         std::int64_t most_tokens)
    : sequences_(sequences), shape_(shape), at_once_(at_once), most_tokens_(most_tokens) {
  waiting_.resize(sequences.size());
  std::iota(waiting_.begin(), waiting_.end(), std::size_t{0});
  if (!shape_.has_cache || shape_.rows <= 1) return;
  std::ranges::stable_sort(
      waiting_, {}, [&](std::size_t sequence) { return length_of(sequences_[sequence]); });
}

std::vector<PlannedCall> PassPlanner::next() {
  return shape_.has_cache ? next_of_lanes() : next_whole();
}

std::vector<PlannedCall> PassPlanner::next_of_lanes() {
  std::erase_if(lanes_, [&](const Lane& lane) {
    return std::ranges::none_of(lane.rows, [&](std::size_t row) { return is_growing(row); });
  });
  const std::int64_t most = most_lanes(std::ssize(sequences_), at_once_, shape_.rows);
  while (!waiting_.empty() && std::ssize(lanes_) < most) {
    Lane& lane = lanes_.emplace_back();
    lane.number = next_lane_++;
    while (!waiting_.empty() && std::ssize(lane.rows) < shape_.rows) {
      lane.rows.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }
  std::vector<PlannedCall> calls;
  for (Lane& lane : lanes_) calls.push_back(advance(lane));
  return calls;
}

PlannedCall PassPlanner::advance(Lane& lane) const {
  std::int64_t length = std::numeric_limits<std::int64_t>::max();
  for (const std::size_t row : lane.rows)
    if (is_growing(row)) length = std::min(length, length_of(sequences_[row]) - lane.position);
  for (const std::int64_t most : {shape_.tokens, most_tokens_})
    if (most > 0) length = std::min(length, most);
  const PlannedCall call{lane.number, lane.rows, lane.position, length};
  lane.position += length;
  return call;
}

std::vector<PlannedCall> PassPlanner::next_whole() {
  std::map<std::int64_t, std::vector<std::size_t>> by_length;
  std::erase_if(waiting_, [&](std::size_t sequence) { return !is_growing(sequence); });
  const auto count = std::min<std::size_t>(waiting_.size(), static_cast<std::size_t>(at_once_));
  for (std::size_t i = 0; i < count; ++i)
    by_length[length_of(sequences_[waiting_[i]])].push_back(waiting_[i]);
  std::vector<PlannedCall> calls;
  for (const auto& [length, sequences] : by_length) {
    const auto rows = shape_.rows < 0 ? std::ssize(sequences) : shape_.rows;
    for (std::int64_t first = 0; first < std::ssize(sequences); first += rows) {
      const auto begin = sequences.begin() + first;
      const auto end = begin + std::min<std::int64_t>(rows, sequences.end() - begin);
      calls.push_back({next_lane_++, {begin, end}, 0, length});
    }
  }
  return calls;
}

}  // namespace accel::train
