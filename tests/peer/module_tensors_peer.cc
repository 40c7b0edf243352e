// Single tensors of a module, for module_tensors.py, which does the same in Accelerate.
//
//   module_tensors_peer < REQUESTS    a line of JSON each; prints a line for each
//
// The net of all requests is Linear(4, 4), BatchNorm1d(4), Linear(4, 4) in a Sequential.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <accel/big_model.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/layerwise_casting.h>
#include <accel/module_tensors.h>
#include <accel/offload.h>

namespace accel::module_tensors_peer {
namespace {

using Json = nlohmann::json;

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kDtypes = {
      {"float32", at::kFloat},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e5m2", at::kFloat8_e5m2}};
  return kDtypes.at(name);
}

// "cpu" or "meta"; without include_buffers the variable of the environment decides.
torch::nn::Sequential net_on(const Json& request) {
  InitEmptyWeightsOptions options;
  if (request.contains("include_buffers")) options.include_buffers = request["include_buffers"];
  const auto scope = init_on_device(at::Device(request.value("init", "cpu")), options);
  return torch::nn::Sequential(
      torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 4));
}

torch::nn::Sequential filled_net(const Json& request) {
  torch::nn::Sequential net = net_on(request);
  if (request.contains("weights"))
    (void)load_checkpoint_in_model(*net, request["weights"].get<std::string>(), {.strict = true});
  return net;
}

Json described(const torch::nn::Module& net) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : named_module_tensors(net, {.recurse = true})) {
    Json values = nullptr;
    if (!tensor.is_meta()) values = tensor.to(at::kDouble).sum().item<double>();
    tensors.push_back({name,
                       tensor.device().str(),
                       c10::toString(tensor.scalar_type()),
                       tensor.sizes().vec(),
                       values});
  }
  return tensors;
}

Json names(const Json& request) {
  torch::nn::Sequential net = filled_net(request);
  Json list = Json::array();
  for (const auto& [name, tensor] : named_module_tensors(
           request["child"].is_null() ? *net.ptr() : *net->ptr(request["child"].get<std::size_t>()),
           {.include_buffers = request["buffers"], .recurse = request["recurse"]}))
    list.push_back(name);
  return list;
}

Json set(const Json& request) {
  torch::nn::Sequential net = filled_net(request);
  SetTensorOptions options;
  if (request.contains("shape")) {
    options.value = at::full(request["shape"].get<std::vector<std::int64_t>>(),
                             request["fill"].get<double>(),
                             dtype_of(request["value_dtype"]));
  }
  if (request.contains("dtype")) options.dtype = dtype_of(request["dtype"]);
  set_module_tensor_to_device(
      *net, request["name"], at::Device(request["device"].get<std::string>()), options);
  return described(*net);
}

// Which of the names share memory afterwards, and the values of the model.
Json retie(const Json& request) {
  torch::nn::Sequential net = filled_net(request);
  const auto group = request["group"].get<std::vector<std::string>>();
  retie_parameters(*net, {group});
  std::map<std::string, const void*> memory;
  for (const auto& item : net->named_parameters()) memory[item.key()] = item.value().data_ptr();
  bool is_shared = true;
  for (const std::string& name : group) is_shared &= memory.at(name) == memory.at(group.front());
  Json sums = Json::object();
  for (const auto& item : net->named_parameters())
    sums[item.key()] = item.value().to(at::kDouble).sum().item<double>();
  return {is_shared, sums};
}

DeviceMap map_of(const Json& json) {
  DeviceMap map;
  for (const auto& [name, place] : json.items()) map[name] = place.get<std::string>();
  return map;
}

// Writes the whole state of a model of which some lies on disk; says what was on disk before, while aligned and afterwards.
Json state(const Json& request) {
  torch::nn::Sequential net = filled_net(request);
  dispatch_model(
      *net, map_of(request["map"]), {.offload_dir = request["folder"].get<std::string>()});
  torch::nn::Module& first = *net->ptr(0);
  const bool before = has_offloaded_params(first);
  bool meanwhile = true;
  double sum = 0;
  {
    const auto aligned = align_module_device(first, at::kCPU);
    meanwhile = has_offloaded_params(first);
    for (const at::Tensor& tensor : first.parameters()) sum += tensor.sum().item<double>();
  }
  offload_state_dict(request["out"].get<std::string>(), get_state_dict_offloaded_model(*net));
  return {before, meanwhile, has_offloaded_params(first), sum};
}

Json cast(const Json& request) {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net = filled_net(request);
  net->eval();
  attach_layerwise_casting_hooks(
      *net,
      dtype_of(request["storage"]),
      dtype_of(request["compute"]),
      {.skip_modules_pattern = request["skip"].get<std::vector<std::string>>()});
  at::Tensor value = at::tensor(request["input"].get<std::vector<double>>(), at::kDouble)
                         .view({-1, 4})
                         .to(dtype_of(request["compute"]));
  const at::Tensor first = net->ptr(0)->as<torch::nn::LinearImpl>()->forward(value);
  const at::Tensor last = net->ptr(2)->as<torch::nn::LinearImpl>()->forward(first);
  const at::Tensor wide = last.to(at::kDouble).contiguous();
  return std::vector<double>(wide.const_data_ptr<double>(),
                             wide.const_data_ptr<double>() + wide.numel());
}

Json answer(const Json& request) {
  const std::string what = request["what"];
  try {
    if (what == "names") return {{"answer", names(request)}};
    if (what == "set") return {{"answer", set(request)}};
    if (what == "init") return {{"answer", described(*net_on(request))}};
    if (what == "retie") return {{"answer", retie(request)}};
    if (what == "state") return {{"answer", state(request)}};
    if (what == "cast") return {{"answer", cast(request)}};
  } catch (const Error& error) {
    return {{"error", error.message()}};
  }
  return {{"error", "no request '" + what + "'"}};
}

}  // namespace
}  // namespace accel::module_tensors_peer

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      const auto request = nlohmann::json::parse(line);
      std::printf("%s\n", accel::module_tensors_peer::answer(request).dump().c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
