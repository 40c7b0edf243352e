#include "train/generation/generation.h"

#include <algorithm>
#include <cstdio>
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
    model_.load_weights(settings);
    const ChoiceOptions options{
        settings.do_sample, settings.temperature, settings.top_k, settings.top_p};
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      choices_.emplace_back(options, settings.seed + i);
  }

  void generate() {
    if (!model_.shape().has_cache)
      std::fputs(
          "accel generate: the model has no cache, so all tokens run again for each new one\n",
          stderr);
    for (auto calls = planner_.next(); !calls.empty(); calls = planner_.next()) {
      const std::vector<at::Tensor> logits = model_(calls, sequences_);
      for (std::size_t i = 0; i < calls.size(); ++i) extend(calls[i], logits[i]);
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
      sequence.tokens.push_back(choices_[call.rows[row]](last));
      sequence.finish = rule_.finish_of(sequence);
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
  std::vector<TokenChoice> choices_;
  std::size_t num_written_ = 0;
};

}  // namespace

void run_generation(const GenerateSettings& settings) {
  PromptRun(settings).generate();
}

}  // namespace accel::train
