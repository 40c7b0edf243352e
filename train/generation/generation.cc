#include "train/generation/generation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/result.h>

#include "runtime/text/counted.h"
#include "runtime/text/joined.h"
#include "train/generation/decoding.h"
#include "train/generation/generating_model.h"
#include "train/generation/prompts.h"
#include "train/generation/token_choice.h"

namespace accel::train {
namespace {

std::vector<Sequence> sequences_of(const GenerateSettings& settings) {
  std::vector<Sequence> sequences;
  const auto add = [&](std::vector<std::int64_t> tokens) {
    const std::size_t length = tokens.size();
    sequences.push_back({std::move(tokens), length, {}});
  };
  for (const std::string& text : settings.prompt_ids)
    add(or_throw(prompt_of(text, "prompt " + std::to_string(sequences.size() + 1))));
  if (!settings.prompt_file.empty())
    for (auto& tokens : or_throw(prompts_of_file(settings.prompt_file))) add(std::move(tokens));
  if (sequences.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "there is no prompt",
                "give one with --prompt_ids, or several with --prompt_file");
  return sequences;
}

void check_prompts(const std::vector<Sequence>& sequences, const GeneratingModel& model) {
  const std::int64_t known = model.vocabulary();
  const std::int64_t places = model.shape().places;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<std::int64_t>& tokens = sequences[i].tokens;
    const std::string name = "prompt " + std::to_string(i + 1);
    const std::int64_t largest = *std::ranges::max_element(tokens);
    if (known >= 0 && largest >= known)
      throw Error(ErrorCode::kInvalidArgument,
                  name + " has the token " + std::to_string(largest) +
                      ", and the model knows those from 0 to " + std::to_string(known - 1),
                  "use the tokenizer of this model");
    if (places >= 0 && std::ssize(tokens) >= places)
      throw Error(ErrorCode::kInvalidArgument,
                  name + " has " + counted(tokens.size(), "token") +
                      ", and the cache of the model has room for " + std::to_string(places) +
                      ", with those that follow",
                  "export the model with a larger cache, or shorten the prompt");
  }
}

class PromptRun {
 public:
  explicit PromptRun(const GenerateSettings& settings)
      : settings_(settings),
        sequences_(sequences_of(settings)),
        model_(settings),
        rule_{settings.max_new_tokens, settings.eos_token_id, model_.shape().places},
        planner_(sequences_, model_.shape(), settings.batch_size, settings.prefill_chunk_size) {
    check_prompts(sequences_, model_);
    model_.load_weights(settings, std::ssize(sequences_));
  }

  void generate() {
    if (!model_.shape().has_cache)
      std::fputs(
          "accel generate: the model has no cache, so all tokens run again for each new one\n",
          stderr);
    for (auto calls = planner_.next(); !calls.empty(); calls = planner_.next()) {
      try {
        const std::vector<at::Tensor> logits = model_(calls, sequences_);
        for (std::size_t i = 0; i < calls.size(); ++i) extend(calls[i], logits[i]);
      } catch (...) {
        write_broken_off();
        throw;
      }
      write_finished();
    }
  }

 private:
  // By the logits behind the last token of each sequence, where the call has reached it.
  void extend(const PlannedCall& call, const at::Tensor& logits) {
    for (std::size_t row = 0; row < call.rows.size(); ++row) {
      Sequence& sequence = sequences_[call.rows[row]];
      if (sequence.finish || call.begin + call.length < std::ssize(sequence.tokens)) continue;
      const at::Tensor last = logits[static_cast<std::int64_t>(row)][call.length - 1];
      sequence.tokens.push_back(next_token(call.rows[row], last));
      sequence.finish = rule_.finish_of(sequence);
      if (sequence.finish) choices_.erase(call.rows[row]);
    }
  }

  std::int64_t next_token(std::size_t sequence, const at::Tensor& logits) {
    if (!settings_.do_sample) return likeliest_token(logits);
    const ChoiceOptions options{settings_.temperature, settings_.top_k, settings_.top_p};
    return choices_.try_emplace(sequence, options, settings_.seed + sequence).first->second(logits);
  }

  // The lines of a run that fails, to that of the last prompt that has got tokens.
  void write_broken_off() {
    std::size_t end = sequences_.size();
    while (end > num_written_ && sequences_[end - 1].generated().empty()) --end;
    std::size_t num_broken_off = 0;
    for (std::size_t i = num_written_; i < end; ++i) {
      if (sequences_[i].finish) continue;
      sequences_[i].finish = Finish::kError;
      ++num_broken_off;
    }
    if (num_broken_off > 0)
      std::fprintf(stderr,
                   "accel generate: the run fails, and %s %s not finished\n",
                   counted(num_broken_off, "line").c_str(),
                   num_broken_off == 1 ? "is" : "are");
    try {
      write_finished();
    } catch (const Error&) {  // the first error is the one to tell
    }
  }

  void write_finished() {
    for (; num_written_ < sequences_.size() && sequences_[num_written_].finish; ++num_written_) {
      const Sequence& sequence = sequences_[num_written_];
      if (sequence.finish == Finish::kFullCache) say_full(sequence);
      const std::string line = (settings_.json ? json_of(sequence) : text_of(sequence)) + "\n";
      if (std::fputs(line.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
        throw Error(ErrorCode::kFileIo, "the tokens cannot be written to standard output");
    }
  }

  void say_full(const Sequence& sequence) const {
    std::fprintf(stderr,
                 "accel generate: prompt %zu ends after %s, because the cache has %lld places\n",
                 num_written_ + 1,
                 counted(sequence.generated().size(), "token").c_str(),
                 static_cast<long long>(rule_.places));
  }

  [[nodiscard]] static std::string text_of(const Sequence& sequence) {
    return joined(
        sequence.generated(), ",", [](std::int64_t token) { return std::to_string(token); });
  }

  [[nodiscard]] std::string json_of(const Sequence& sequence) const {
    const auto generated = sequence.generated();
    const std::vector<std::int64_t> prompt(sequence.tokens.begin(),
                                           sequence.tokens.end() - std::ssize(generated));
    return nlohmann::json{
        {"prompt", num_written_ + 1},
        {"prompt_ids", prompt},
        {"generated_ids", std::vector<std::int64_t>(generated.begin(), generated.end())},
        {"finish", finish_name(*sequence.finish)}}
        .dump();
  }

  const GenerateSettings& settings_;
  std::vector<Sequence> sequences_;
  GeneratingModel model_;
  const StopRule rule_;
  PassPlanner planner_;
  std::map<std::size_t, TokenChoice> choices_;  // of sequences that have drawn and go on
  std::size_t num_written_ = 0;
};

}  // namespace

void run_generation(const GenerateSettings& settings) {
  PromptRun(settings).generate();
}

}  // namespace accel::train
