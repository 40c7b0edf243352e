// Decoding: sequences of tokens that grow, and which of them the next pass over the model takes how far.
//
// A pass is calls of the model that run side by side, so that one read of a weight serves all of them.
//
//   with a cache     sequences share a lane, as many as the model has rows. A lane has one position, because the model takes one for
//                    all rows: a call takes as many tokens as each sequence that is not finished has beyond it. So sequences of
//                    different lengths need no padding: those with shorter prompts begin to grow while the others are still read.
//                    Each call completes at least one sequence's tokens, so a lane takes no more calls than its sequences alone
//   without a cache  all tokens again in each call, which takes sequences of one length
//
// Threads:  values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace accel::train {

enum class Finish { kEndToken, kLength, kFullCache, kError };

// "eos", "length", "cache", "error".
[[nodiscard]] const char* finish_name(Finish finish);

struct Sequence {
  std::vector<std::int64_t> tokens;  // the prompt, and what came after it
  std::size_t prompt_length = 0;
  std::optional<Finish> finish;

  [[nodiscard]] std::span<const std::int64_t> generated() const {
    return std::span(tokens).subspan(prompt_length);
  }
};

// How a model is called. -1: any number.
struct ModelShape {
  bool has_cache = false;
  std::int64_t rows = -1;    // of a call
  std::int64_t tokens = -1;  // of a row
  std::int64_t places = -1;  // of the cache
};

// How many lanes run together. sequences, at_once, rows: 1 or more. Pure.
[[nodiscard]] std::int64_t most_lanes(std::int64_t sequences,
                                      std::int64_t at_once,
                                      std::int64_t rows);

// Of the bytes that are available, those that weights may take beside a cache for each lane: a tenth is left to all else. Pure.
[[nodiscard]] std::int64_t bytes_for_weights(std::int64_t available,
                                             std::int64_t lanes,
                                             std::int64_t cache_bytes);

struct StopRule {
  std::int64_t max_new_tokens = 0;
  std::vector<std::int64_t> end_tokens;
  std::int64_t places = -1;  // as in ModelShape

  // Of a sequence that has just got a token.
  [[nodiscard]] std::optional<Finish> finish_of(const Sequence& sequence) const;
};

struct PlannedCall {
  std::size_t lane = 0;  // calls with the same number share a cache, which is new with the number
  std::vector<std::size_t>
      rows;  // sequences, in part finished ones; fewer than the model has: any tokens in the others
  std::int64_t begin = 0;   // place of the first token
  std::int64_t length = 0;  // tokens of each row
};

class PassPlanner {
 public:
  // at_once: sequences that grow together. most_tokens: of a row in a call with a cache; 0: any. Borrows the sequences.
  PassPlanner(const std::vector<Sequence>& sequences,
              const ModelShape& shape,
              std::int64_t at_once,
              std::int64_t most_tokens);

  // Counts as done. Empty: all are finished.
  [[nodiscard]] std::vector<PlannedCall> next();

 private:
  struct Lane {
    std::size_t number = 0;
    std::vector<std::size_t> rows;
    std::int64_t position = 0;
  };
  [[nodiscard]] bool is_growing(std::size_t sequence) const {
    return !sequences_[sequence].finish.has_value();
  }
  [[nodiscard]] std::vector<PlannedCall> next_of_lanes();
  [[nodiscard]] std::vector<PlannedCall> next_whole();
  [[nodiscard]] PlannedCall advance(Lane& lane) const;

  const std::vector<Sequence>& sequences_;
  const ModelShape shape_;
  const std::int64_t at_once_;
  const std::int64_t most_tokens_;
  std::deque<std::size_t> waiting_;
  std::vector<Lane> lanes_;
  std::size_t next_lane_ = 0;
};

}  // namespace accel::train
