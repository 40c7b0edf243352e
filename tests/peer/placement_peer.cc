// Device maps and folders of offloaded weights, for device_maps.py, which asks Accelerate the same.
//
//   placement_peer plan < QUESTIONS      a line of JSON each: a model and what is asked of it; prints a line for each
//   placement_peer rewrite FROM TO       reads all weights of a folder and writes them into another one
//   placement_peer run MODEL MAP FOLDER  loads a model by a device map, and prints what it computes
//
// A model is {"class": C, "parameters": [[name, dtype, shape, tie]], "buffers": [...], "children": [[name, model]]}; parameters with
// the same tie are one.

#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <accel/big_model.h>
#include <accel/device_map.h>
#include <accel/error.h>
#include <accel/offload.h>

namespace accel::placement_peer {
namespace {

using Json = nlohmann::json;

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kDtypes = {{"float32", at::kFloat},
                                                                {"float16", at::kHalf},
                                                                {"bfloat16", at::kBFloat16},
                                                                {"int64", at::kLong},
                                                                {"bool", at::kBool},
                                                                {"int8", at::kChar}};
  return kDtypes.at(name);
}

class Part : public torch::nn::Module {
 public:
  Part(const Json& model, std::map<int, at::Tensor>& tied)
      : torch::nn::Module(model.at("class").get<std::string>()) {
    for (const Json& item : model.at("parameters")) {
      at::Tensor tensor = tensor_of(item);
      const int tie = item.at(3);
      if (tie >= 0) tensor = tied.try_emplace(tie, tensor).first->second;
      register_parameter(item.at(0), tensor, tensor.is_floating_point());
    }
    for (const Json& item : model.at("buffers")) register_buffer(item.at(0), tensor_of(item));
    for (const Json& item : model.at("children"))
      register_module(item.at(0), std::make_shared<Part>(item.at(1), tied));
  }

 private:
  static at::Tensor tensor_of(const Json& item) {
    return at::empty(item.at(2).get<std::vector<std::int64_t>>(),
                     at::TensorOptions().dtype(dtype_of(item.at(1))).device(at::kMeta));
  }
};

Placement place_of(const Json& json) {
  return json.is_number() ? Placement(json.get<int>()) : Placement(json.get<std::string>());
}

// "0" of a JSON object is GPU 0.
Placement place_of_key(const std::string& key) {
  return key.find_first_not_of("0123456789") == std::string::npos ? Placement(std::stoi(key))
                                                                  : Placement(key);
}

MaxMemory max_memory_of(const Json& json) {
  MaxMemory limits;
  for (const auto& [key, value] : json.items()) {
    limits[place_of_key(key)] = value.is_string() ? MemorySize(value.get<std::string>())
                                                  : MemorySize(value.get<std::int64_t>());
  }
  return limits;
}

Json json_of(const Placement& place) {
  const int* gpu = std::get_if<int>(&place);
  return gpu != nullptr ? Json(*gpu) : Json(std::get<std::string>(place));
}

Json json_of(const DeviceMap& map) {
  Json json = Json::object();
  for (const auto& [name, place] : map) json[name] = json_of(place);
  return json;
}

Json answer(const Json& question) {
  std::map<int, at::Tensor> tied;
  const Part model(question.at("model"), tied);
  const auto limits = max_memory_of(question.at("max_memory"));
  const auto unsplit = question.at("no_split").get<std::vector<std::string>>();
  DeviceMapOptions options{.max_memory = limits,
                           .no_split_module_classes = unsplit,
                           .clean_result = question.at("clean"),
                           .offload_buffers = question.at("offload_buffers"),
                           .fallback_allocation = question.at("fallback")};
  if (const std::string dtype = question.at("dtype"); !dtype.empty())
    options.dtype = dtype_of(dtype);
  Json balanced = Json::object();
  for (const auto& [place, bytes] : get_balanced_memory(model,
                                                        {.max_memory = limits,
                                                        .no_split_module_classes = unsplit,
                                                        .dtype = options.dtype,
                                                        .low_zero = question.at("low_zero")}))
    balanced[to_string(place)] = bytes;
  const auto [total, largest] = calculate_maximum_sizes(model);
  return {{"sizes", compute_module_sizes(model, {.dtype = options.dtype})},
          {"tied", find_tied_parameters(model)},
          {"balanced", balanced},
          {"total", total},
          {"largest", largest.bytes},
          {"largest_names", largest.names},
          {"map", json_of(infer_auto_device_map(model, options))}};
}

int plan() {
  for (std::string line; std::getline(std::cin, line);)
    std::printf("%s\n", answer(Json::parse(line)).dump().c_str());
  return 0;
}

int rewrite(const std::string& from, const std::string& to) {
  const OffloadedWeightsLoader loader({}, from);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : loader.keys()) tensors[name] = loader.at(name);
  offload_state_dict(to, tensors);
  return 0;
}

// Three linear layers 0, 1, 2 of 16 x 16, on an input of ones.
int run(const std::string& weights, const std::string& map, const std::string& folder) {
  torch::nn::Sequential model;
  {
    const auto empty = init_empty_weights();
    for (int i = 0; i < 3; ++i) model->push_back(torch::nn::Linear(16, 16));
  }
  LoadAndDispatchOptions options{.offload_folder = folder, .strict = true};
  DeviceMap places;
  const Json json = Json::parse(map);
  for (const auto& [name, place] : json.items()) places[name] = place_of(place);
  options.device_map = places;
  (void)load_checkpoint_and_dispatch(*model, weights, options);
  const at::Tensor output = model->forward(torch::ones({1, 16})).contiguous();
  const auto* bits = static_cast<const std::uint32_t*>(output.const_data_ptr());
  for (std::int64_t i = 0; i < output.numel(); ++i) std::printf("%08x ", bits[i]);
  std::printf("%d\n", has_offloaded_params(*model) ? 1 : 0);
  return 0;
}

}  // namespace
}  // namespace accel::placement_peer

int main(int argc, char** argv) {
  using namespace accel::placement_peer;
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 1 && words[0] == "plan") return plan();
    if (words.size() == 3 && words[0] == "rewrite") return rewrite(words[1], words[2]);
    if (words.size() == 4 && words[0] == "run") return run(words[1], words[2], words[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "use: placement_peer plan | rewrite FROM TO | run MODEL MAP FOLDER\n");
  return 2;
}
