// The C++ half of tests/peer/operations.py: runs the operations as one rank and prints their results as JSON.
//
// Each entry has the same name and inputs in both halves.

#include <array>
#include <cstdint>
#include <cstdio>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/profiler.h>
#include <accel/random.h>
#include <accel/state.h>

namespace {

using accel::Reduction;
using nlohmann::json;

json to_json(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.item<double>();
  json values = json::array();
  for (std::int64_t i = 0; i < tensor.size(0); ++i) values.push_back(to_json(tensor.select(0, i)));
  return values;
}

// [1, 2] on rank 0, [3, 4] on rank 1.
at::Tensor two_numbers(const accel::PartialState& state) {
  return at::arange(1, 3, at::kFloat) + 2 * state.process_index();
}

void add_states(const accel::PartialState& state, json& results) {
  const accel::AcceleratorState accelerator({.mixed_precision = accel::PrecisionType::kBf16});
  results["state"] = state.to_string();
  results["accelerator state"] = accelerator.to_string();
  results["gradient state"] = accel::GradientState({.num_steps = 4}).to_string();
  results["flags"] = {
      state.is_main_process(), state.is_local_main_process(), state.is_last_process()};
}

void add_collectives(const accel::PartialState& state, json& results) {
  const at::Tensor input = two_numbers(state);
  const at::Tensor square = (at::arange(4).view({2, 2}) + 10 * state.process_index()).t();
  results["gather"] = to_json(accel::gather(input));
  results["gather scalar"] = to_json(accel::gather(at::full({}, state.process_index(), at::kLong)));
  results["gather view"] = to_json(accel::gather(square));
  results["reduce sum"] = to_json(accel::reduce(input, Reduction::kSum));
  results["reduce mean"] = to_json(accel::reduce(input));
  results["reduce max"] = to_json(accel::reduce(input, Reduction::kMax));
  results["broadcast"] = to_json(accel::broadcast(two_numbers(state)));
  results["broadcast from 1"] = to_json(accel::broadcast(two_numbers(state), 1));
  const std::map<std::string, std::vector<at::Tensor>> nested = {{"a", {input, input * 2}}};
  results["gather nested"] = to_json(accel::gather(nested).at("a")[1]);
}

void add_padding(const accel::PartialState& state, json& results) {
  const std::int64_t extra = state.is_main_process() ? 1 : 0;
  const at::Tensor row = at::arange(1, 4 + extra);
  const at::Tensor matrix = at::ones({2, 3 - extra});
  results["pad"] = to_json(accel::pad_across_processes(row));
  results["pad first"] =
      to_json(accel::pad_across_processes(row, {.pad_index = -1, .pad_first = true}));
  results["pad dim 1"] = to_json(accel::pad_across_processes(matrix, {.dim = 1, .pad_index = 7}));
  results["pad dim -1"] = to_json(accel::pad_across_processes(matrix, {.dim = -1}));
  results["pad dim 5"] = to_json(accel::pad_across_processes(matrix, {.dim = 5}));
}

void add_objects(const accel::PartialState& state, json& results) {
  const std::string rank = std::to_string(state.process_index());
  std::vector<std::string> own(static_cast<std::size_t>(1 + state.process_index()), "from " + rank);
  results["gather_object"] = accel::gather_object(own);
  std::vector<std::string> list = {"a" + rank, "b" + rank};
  accel::broadcast_object_list(list, 1);
  results["broadcast_object_list"] = list;
}

void add_splits(const accel::PartialState& state, json& results) {
  std::vector<int> seventeen(17);
  for (int i = 0; i < 17; ++i) seventeen[static_cast<std::size_t>(i)] = i;
  const std::vector<std::string> letters = {"A", "B", "C"};
  const std::vector<std::string> one = {"A"};
  const at::Tensor rows = at::arange(6).view({3, 2});
  results["split 17"] = state.split_between_processes(seventeen);
  results["split letters"] = state.split_between_processes(letters);
  results["split letters padded"] = state.split_between_processes(letters, {.apply_padding = true});
  results["split one"] = state.split_between_processes(one);
  results["split one padded"] = state.split_between_processes(one, {.apply_padding = true});
  results["split rows"] = to_json(state.split_between_processes(rows));
  const std::map<std::string, std::vector<std::string>> both = {{"x", letters}, {"y", letters}};
  results["split map"] = state.split_between_processes(both);
}

void add_batches(json& results) {
  const std::vector<at::Tensor> batch = {at::arange(6).view({3, 2}), at::arange(3)};
  results["batch size"] = accel::find_batch_size(batch);
  results["slice"] = to_json(accel::slice_tensors(batch, 1, 9)[1]);
  results["concatenate"] = to_json(accel::concatenate(std::vector{batch, batch})[0]);
  const at::Tensor half = accel::convert_to_fp32(at::full({1}, 1.0 / 3, at::kBFloat16));
  results["fp32"] = {to_json(half), half.scalar_type() == at::kFloat};
}

void add_random(json& results) {
  accel::set_seed(42);
  results["rand"] = to_json(at::rand({4}));
  results["randn"] = to_json(at::randn({20}));
  results["randperm"] = to_json(at::randperm(10));
  results["randint"] = to_json(at::randint(0, 1000, {5}));
  accel::set_seed(42, {.device_specific = true});
  results["rand device specific"] = to_json(at::rand({4}));
  accel::synchronize_rng_states({accel::RNGType::kTorch});
  results["rand synchronized"] = to_json(at::rand({4}));
}

void add_debug(const accel::PartialState& state, json& results) {
  const at::Tensor input = state.is_main_process() ? at::ones({1, 5}) : at::ones({1, 1, 6});
  const auto fails = [](auto&& operation) {
    try {
      operation();
      return false;
    } catch (const accel::Error& error) {
      return error.code() == accel::ErrorCode::kShapeMismatch;
    }
  };
  try {
    (void)accel::gather(at::ones({1, 5 + state.process_index()}));
  } catch (const accel::Error& error) {
    // Behind each shape we have the type, too.
    results["debug words"] = std::regex_replace(error.message(), std::regex(" Float"), "");
  }
  results["debug gather"] = fails([&] { accel::gather(input); });
  results["debug reduce"] = fails([&] { accel::reduce(input); });
  results["debug broadcast"] = fails([&] { accel::broadcast(input); });
  results["debug pad"] = fails([&] { accel::pad_across_processes(input); });
}

json rows_of(const accel::KeyAverages& averages) {
  json rows = json::array();
  for (const accel::KeyAverage& row : averages) {
    rows.push_back({row.key,
                    row.count,
                    row.flops,
                    row.cpu_memory_usage,
                    row.self_cpu_memory_usage,
                    row.input_shapes == "[]" ? "" : row.input_shapes});
  }
  return rows;
}

// What peer() of tests/peer/profiler.py does.
json profile_steps(const std::string& folder) {
  const accel::Accelerator accelerator({.cpu = true});
  const at::Tensor kernel = at::full({8, 3, 3, 3}, 0.1).requires_grad_();
  const at::Tensor dense = at::full({10, 288}, 0.01).requires_grad_();
  const at::Tensor bias = at::zeros({10}).requires_grad_();
  const at::Tensor images = at::ones({4, 3, 8, 8});
  const at::Tensor labels = at::arange(4);
  const at::Tensor scale = at::full({10}, 2.0);
  const at::Tensor shift = at::ones({10});
  const at::Tensor root = at::ones({});
  // Both numbers of each, as modules and Python pass them: LibTorch counts no FLOPs of at::conv2d's own defaults.
  const std::array<std::int64_t, 2> one{1, 1};
  const std::array<std::int64_t, 2> zero{0, 0};
  const auto step = [&] {
    const at::Tensor hidden = at::relu(at::conv2d(images, kernel, {}, one, zero, one));
    const at::Tensor out = at::addmm(bias, hidden.reshape({4, 288}), dense.t());
    at::cross_entropy_loss(out * scale + shift, labels).backward(root);
  };
  step();
  accel::Profiler profiler = accelerator.profile(
      {.activities = {{"cpu"}},
       .schedule_option = accel::ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 1},
       .record_shapes = true,
       .profile_memory = true,
       .with_flops = true,
       .output_trace_dir = folder});
  for (int i = 0; i < 5; ++i) {
    step();
    profiler.step();
  }
  profiler.stop();
  const accel::KeyAverages by_shape = profiler.key_averages({.group_by_input_shape = true});
  return {{"by name", rows_of(profiler.key_averages())},
          {"by shape", rows_of(by_shape)},
          {"steps", profiler.step_num()},
          {"table", by_shape.table({.sort_by = "flops", .row_limit = 5})}};
}

}  // namespace

// With "profile FOLDER": the other half of tests/peer/profiler.py.
int main(int argc, char** argv) {
  if (argc == 3 && argv[1] == std::string_view("profile")) {
    std::puts(profile_steps(argv[2]).dump().c_str());
    return 0;
  }
  json results;
  const accel::PartialState state;
  add_states(state, results);
  add_collectives(state, results);
  add_padding(state, results);
  add_objects(state, results);
  add_splits(state, results);
  add_batches(results);
  add_random(results);
  if (state.debug()) add_debug(state, results);
  state.wait_for_everyone();
  std::puts(results.dump().c_str());
  return 0;
}
