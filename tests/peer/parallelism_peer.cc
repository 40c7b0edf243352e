// What tests/peer/parallelism.py drives: reads cases as JSON from stdin and writes what libaccel makes of them to stdout. With
// "accelerator": what an Accelerator of this environment says of itself.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/dynamo_plugin.h>
#include <accel/error.h>
#include <accel/fp8_recipe.h>
#include <accel/parallelism_config.h>

#include "tests/support/numbers.h"

namespace {

using nlohmann::json;

accel::EnvLookup env_of(const json& spec) {
  return [variables = spec.get<std::map<std::string, std::string>>()](
             std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

template <typename T>
void read(const json& spec, const char* name, std::optional<T>& field) {
  if (spec.contains(name)) field = spec[name].get<T>();
}

accel::ParallelismConfig config_of(const json& spec) {
  accel::ParallelismConfig config;
  read(spec, "dp_replicate_size", config.dp_replicate_size);
  read(spec, "dp_shard_size", config.dp_shard_size);
  read(spec, "tp_size", config.tp_size);
  read(spec, "cp_size", config.cp_size);
  read(spec, "cp_backend", config.cp_backend);
  read(spec, "sp_size", config.sp_size);
  read(spec, "sp_backend", config.sp_backend);
  return config;
}

json mesh_of(const std::optional<accel::DeviceMesh>& mesh) {
  if (!mesh) return nullptr;
  json ranks = json::object();
  for (const auto& name : mesh->mesh_dim_names) ranks[name] = mesh->get_local_rank(name);
  for (const char* joint : {"dp", "dp_shard_cp", "dp_cp"}) {
    try {
      ranks[joint] = mesh->get_local_rank(joint);
    } catch (const accel::Error&) {  // none of its axes is there
    }
  }
  return {{"mesh_dim_names", mesh->mesh_dim_names}, {"shape", mesh->shape}, {"ranks", ranks}};
}

json described(const accel::ParallelismConfig& config) {
  return {{"json", json::parse(config.to_json())},
          {"total_size", config.total_size()},
          {"data_parallel_size", config.data_parallel_size()},
          {"non_data_parallel_size", config.non_data_parallel_size()},
          {"dp_dim_names", config.dp_dim_names()},
          {"non_dp_dim_names", config.non_dp_dim_names()},
          {"dp_shard_cp_dim_names", config.dp_shard_cp_dim_names()},
          {"dp_cp_dim_names", config.dp_cp_dim_names()},
          {"fsdp_dim_names", config.fsdp_dim_names()},
          {"active_mesh_dims", config.active_mesh_dims()},
          {"enabled",
           {config.dp_replicate_enabled(),
            config.dp_shard_enabled(),
            config.tp_enabled(),
            config.cp_enabled(),
            config.sp_enabled()}}};
}

json answer_to_config(const json& spec) {
  try {
    return described(config_of(spec["given"]).resolved(env_of(spec["env"])));
  } catch (const accel::Error& error) {
    return {{"refused", error.message()}};
  }
}

// Of every process.
json answer_to_loader(const json& spec) {
  const accel::ParallelismConfig config = config_of(spec["given"]);
  json answers = json::array();
  for (int process = 0; process < config.total_size(); ++process) {
    const auto mesh = config.build_device_mesh(process);
    accel::ShardOptions options;
    options.even_batches = spec["even_batches"];
    options.torch_device_mesh = mesh;
    const auto loader = accel::prepare_data_loader(
        accel::DataLoader(accel::test::Numbers{spec["size"]},
                          {.batch_size = spec["batch_size"], .drop_last = spec["drop_last"]}),
        options);
    answers.push_back({{"mesh", mesh_of(mesh)},
                       {"batches", accel::test::pass_of(loader)},
                       {"total_batch_size", *loader.total_batch_size()}});
  }
  return answers;
}

accel::Fp8Recipe recipe_of(const json& spec) {
  const std::string kind = spec["kind"];
  if (kind == "ao") {
    accel::AORecipeKwargs recipe;
    read(spec, "pad_inner_dim", recipe.pad_inner_dim);
    read(spec, "enable_fsdp_float8_all_gather", recipe.enable_fsdp_float8_all_gather);
    return recipe;
  }
  if (kind == "msamp") {
    accel::MSAMPRecipeKwargs recipe;
    read(spec, "opt_level", recipe.opt_level);
    return recipe;
  }
  accel::TERecipeKwargs recipe;
  read(spec, "use_autocast_during_eval", recipe.use_autocast_during_eval);
  read(spec, "margin", recipe.margin);
  read(spec, "interval", recipe.interval);
  read(spec, "fp8_format", recipe.fp8_format);
  read(spec, "amax_history_len", recipe.amax_history_len);
  read(spec, "amax_compute_algo", recipe.amax_compute_algo);
  read(spec, "override_linear_precision", recipe.override_linear_precision);
  read(spec, "use_mxfp8_block_scaling", recipe.use_mxfp8_block_scaling);
  if (kind == "te") return recipe;
  accel::FP8RecipeKwargs both{.te = recipe};
  read(spec, "backend", both.backend);
  read(spec, "opt_level", both.msamp.opt_level);
  return both;
}

json answer_to_fp8(const json& spec) {
  try {
    return accel::fp8_environment(recipe_of(spec), env_of(json::object()));
  } catch (const accel::Error& error) {
    return {{"refused", error.message()}};
  }
}

json answer_to_dynamo(const json& spec) {
  accel::TorchDynamoPlugin plugin;
  if (spec.contains("backend"))
    plugin.backend = accel::parse<accel::DynamoBackend>(spec["backend"].get<std::string>());
  read(spec, "mode", plugin.mode);
  read(spec, "fullgraph", plugin.fullgraph);
  read(spec, "dynamic", plugin.dynamic);
  read(spec, "use_regional_compilation", plugin.use_regional_compilation);
  return accel::dynamo_environment(plugin, env_of(json::object()));
}

template <typename F>
json value_or_error(F act) {
  try {
    return act();
  } catch (const accel::Error& error) {
    return error.message();
  }
}

json own_attributes() {
  try {
    const accel::Accelerator accelerator;
    json answer = {
        {"torch_device_mesh", mesh_of(accelerator.torch_device_mesh())},
        {"is_fsdp2", accelerator.is_fsdp2()},
        {"is_composable_parallelism_enabled", accelerator.is_composable_parallelism_enabled()},
        {"should_save_model", accelerator.should_save_model()},
        {"fp8_backend", accel::to_string(accelerator.fp8_backend())},
        {"initialized", accel::AcceleratorState::initialized()},
        {"data_parallel_rank", value_or_error([&] { return accelerator.data_parallel_rank(); })},
        {"data_parallel_shard_rank",
         value_or_error([&] { return accelerator.data_parallel_shard_rank(); })},
        {"tensor_parallel_rank",
         value_or_error([&] { return accelerator.tensor_parallel_rank(); })},
        {"pipeline_parallel_rank",
         value_or_error([&] { return accelerator.pipeline_parallel_rank(); })},
        {"context_parallel_rank",
         value_or_error([&] { return accelerator.context_parallel_rank(); })}};
    const auto& config = accelerator.parallelism_config();
    answer["parallelism_config"] = config ? described(*config) : json();
    return answer;
  } catch (const accel::Error& error) {
    return {{"refused", error.message()}};
  }
}

json answers(const json& specs, json (*answer)(const json&)) {
  json all = json::array();
  for (const json& spec : specs) all.push_back(answer(spec));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string_view("accelerator")) {
    std::puts(own_attributes().dump().c_str());
    return 0;
  }
  const json cases = json::parse(std::cin);
  const json all = {{"configs", answers(cases["configs"], answer_to_config)},
                    {"loaders", answers(cases["loaders"], answer_to_loader)},
                    {"fp8", answers(cases["fp8"], answer_to_fp8)},
                    {"dynamo", answers(cases["dynamo"], answer_to_dynamo)}};
  std::puts(all.dump().c_str());
  return 0;
}
