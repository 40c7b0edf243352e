#include "libaccel/engine/optim/model_fragments.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <accel/error.h>

namespace accel {
namespace {

struct Layer {
  std::string prefix;  // of its parameters' names
  std::shared_ptr<torch::nn::Module> module;
};

bool is_list_of_modules(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

void add_layers(const torch::nn::Module& module,
                const std::string& prefix,
                std::vector<Layer>& layers) {
  for (const auto& child : module.named_children()) {
    if (child.value()->parameters().empty()) continue;
    const std::string own = prefix + child.key() + ".";
    if (is_list_of_modules(*child.value())) {
      add_layers(*child.value(), own, layers);
    } else {
      layers.push_back({own, child.value()});
    }
  }
}

std::vector<Layer> layers_of(const torch::nn::Module& module, const std::string& prefix) {
  std::vector<Layer> layers;
  add_layers(module, prefix, layers);
  const bool wraps_one = layers.size() == 1 && module.parameters(/*recurse=*/false).empty();
  if (!wraps_one || layers[0].module->children().empty()) return layers;
  const Layer only = layers[0];
  return layers_of(*only.module, only.prefix);
}

}  // namespace

std::vector<std::vector<NamedParameter>> strided_fragments(const torch::nn::Module& module,
                                                           int num_fragments) {
  const std::vector<Layer> layers = layers_of(module, "");
  std::map<std::ptrdiff_t, std::vector<NamedParameter>> by_layer;
  for (NamedParameter& parameter : trainable_parameters(module)) {
    const auto found = std::find_if(layers.begin(), layers.end(), [&](const Layer& layer) {
      return parameter.name.starts_with(layer.prefix);
    });
    by_layer[found - layers.begin()].push_back(std::move(parameter));
  }
  if (std::cmp_greater(num_fragments, by_layer.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                "num_fragments is " + std::to_string(num_fragments) + ", and the model has " +
                    std::to_string(by_layer.size()) + " layers with parameters to train",
                "set num_fragments to the number of layers or less");
  }
  std::vector<std::vector<NamedParameter>> fragments(static_cast<std::size_t>(num_fragments));
  std::size_t next = 0;
  for (auto& [layer, parameters] : by_layer) {
    auto& fragment = fragments[next++ % fragments.size()];
    std::move(parameters.begin(), parameters.end(), std::back_inserter(fragment));
  }
  return fragments;
}

}  // namespace accel
