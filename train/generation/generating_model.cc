#include "train/generation/generating_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accel/big_model.h>
#include <accel/device_map.h>
#include <accel/error.h>
#include <accel/offload.h>

#include "runtime/text/joined.h"

namespace accel::train {
namespace {

constexpr const char* kIds = "input_ids";
constexpr const char* kPosition = "cache_position";
constexpr const char* kHowToExport =
    "export it with `accel export --loss logits --dynamic batch,sequence`, or with a static cache "
    "as "
    "docs/guides/generate.md shows";

ExportedModel graph_alone(const GenerateSettings& settings) {
  const auto empty = init_empty_weights();
  ExportedModel net(settings.model);
  net->eval();
  return net;
}

Error wrong_model(const std::string& what) {
  return Error(ErrorCode::kUnsupported, what, kHowToExport);
}

void check_inputs(const ExportedModel& net, bool has_cache) {
  const std::vector<std::string> names = net->input_names();
  const std::string all = joined(names, ", ");
  if (std::ranges::find(names, kIds) == names.end())
    throw wrong_model("the model takes " + all +
                      ", expected input_ids, and cache_position if it has a cache");
  if (has_cache && names.size() > 2)
    throw wrong_model("the model takes " + all + ", expected input_ids and cache_position alone");
  if (net->input_sizes(kIds).size() != 2 || !net->input_dtype(kIds) ||
      !c10::isIntegralType(*net->input_dtype(kIds), false))
    throw wrong_model("the model takes input_ids that are no whole numbers in rows of tokens");
}

// What the buffers say of the rows and places of a cache: [rows, heads, places, width].
void read_cache(const ExportedState& state, ModelShape& shape) {
  if (state.empty())
    throw wrong_model(
        "the model takes cache_position, but its graph writes no buffer that keeps keys and "
        "values");
  for (const auto& [name, buffer] : state) {
    if (buffer.dim() != 4 || buffer.size(2) == 0) continue;
    if (shape.rows < 0) shape.rows = buffer.size(0);
    shape.places = shape.places < 0 ? buffer.size(2) : std::min(shape.places, buffer.size(2));
  }
}

ModelShape shape_of(const ExportedModel& net, const ExportedState& state, bool has_cache) {
  const std::vector<std::int64_t> sizes = net->input_sizes(kIds);
  ModelShape shape{.has_cache = has_cache, .rows = sizes[0], .tokens = sizes[1]};
  if (has_cache) read_cache(state, shape);
  if (has_cache && shape.rows < 0)
    throw wrong_model("no buffer says how many rows the cache of the model has");
  if (has_cache ? shape.tokens > 1 : shape.tokens >= 0)
    throw wrong_model("the model takes " + std::to_string(shape.tokens) +
                      " tokens in each call, expected " +
                      (has_cache ? "one, or any number" : "any number"));
  return shape;
}

bool takes_position(const ExportedModel& net) {
  const std::vector<std::string> names = net->input_names();
  return std::ranges::find(names, kPosition) != names.end();
}

std::int64_t state_bytes(const ExportedState& state) {
  std::int64_t bytes = 0;
  for (const auto& [name, buffer] : state) bytes += static_cast<std::int64_t>(buffer.nbytes());
  return bytes;
}

}  // namespace

GeneratingModel::GeneratingModel(const GenerateSettings& settings)
    : net_(graph_alone(settings)), calls_(*net_) {
  const bool has_cache = takes_position(net_);
  check_inputs(net_, has_cache);
  if (!has_cache) call_.emplace(net_->input_names(), true);
  shape_ = shape_of(net_, calls_.own_state(), has_cache);
}

void GeneratingModel::load_weights(const GenerateSettings& settings, std::int64_t num_sequences) {
  LoadAndDispatchOptions options{.device_map = "auto",
                                 .no_split_module_classes = settings.no_split_module_classes,
                                 .offload_folder = settings.offload_folder};
  if (!settings.disk_cache.empty()) options.disk_cache = settings.disk_cache;
  MaxMemory limits;
  if (!settings.max_memory.empty()) {
    limits["cpu"] = settings.max_memory;
  } else if (shape_.has_cache) {  // the caches need some of what is available
    const std::int64_t lanes = most_lanes(num_sequences, settings.batch_size, shape_.rows);
    limits["cpu"] =
        bytes_for_weights(get_max_memory().front().second, lanes, state_bytes(calls_.own_state()));
  }
  if (!limits.empty()) options.max_memory = limits;
  (void)load_checkpoint_and_dispatch(
      *net_, settings.weights.empty() ? settings.model : settings.weights, options);
}

std::int64_t GeneratingModel::vocabulary() const {
  return net_->index_limit(kIds);
}

at::Tensor GeneratingModel::tokens_of(const PlannedCall& call,
                                      const std::vector<Sequence>& sequences) const {
  const std::int64_t rows = shape_.rows < 0 ? std::ssize(call.rows) : shape_.rows;
  at::Tensor tokens = at::zeros({rows, call.length}, at::kLong);
  auto places = tokens.accessor<std::int64_t, 2>();
  for (std::size_t row = 0; row < call.rows.size(); ++row) {
    const std::vector<std::int64_t>& known = sequences[call.rows[row]].tokens;
    const std::int64_t end = std::min(call.begin + call.length, std::ssize(known));
    for (std::int64_t place = call.begin; place < end; ++place)
      places[static_cast<std::int64_t>(row)][place - call.begin] =
          known[static_cast<std::size_t>(place)];
  }
  return tokens.to(*net_->input_dtype(kIds));
}

ExportedInputs GeneratingModel::inputs_of(const PlannedCall& call, const at::Tensor& tokens) const {
  if (call_) return call_->inputs(tokens, tokens);
  const auto dtype = net_->input_dtype(kPosition).value_or(at::kLong);
  return {{kIds, tokens}, {kPosition, at::arange(call.begin, call.begin + call.length, dtype)}};
}

void GeneratingModel::hold_states(const std::vector<PlannedCall>& calls) {
  std::map<std::size_t, ExportedState> kept;
  for (const PlannedCall& call : calls) kept.insert(states_.extract(call.lane));
  states_ = std::move(kept);
  for (const PlannedCall& call : calls)
    if (!states_.contains(call.lane)) states_.emplace(call.lane, calls_.new_state());
}

std::vector<at::Tensor> GeneratingModel::operator()(const std::vector<PlannedCall>& calls,
                                                    const std::vector<Sequence>& sequences) {
  const at::NoGradGuard no_grad;
  hold_states(calls);
  std::vector<ExportedCall> inputs;
  for (const PlannedCall& call : calls)
    inputs.push_back({inputs_of(call, tokens_of(call, sequences)), &states_.at(call.lane)});
  std::vector<at::Tensor> logits;
  for (const ExportedOutputs& outputs : calls_(inputs)) {
    logits.push_back(logits_of(outputs));
    if (!logits.back().defined() || logits.back().dim() != 3)
      throw wrong_model("the model gives " + joined(outputs.names, ", ") +
                        ", expected logits [rows, tokens, vocabulary]");
  }
  return logits;
}

}  // namespace accel::train
