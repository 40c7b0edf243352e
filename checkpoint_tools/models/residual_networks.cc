#include "checkpoint_tools/models/residual_networks.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace accel::launcher {
namespace {

struct TimmNetwork {
  std::string_view name;
  std::array<Count, 4> depths;
  bool is_bottleneck;
};
constexpr TimmNetwork kTimmNetworks[] = {{"resnet18", {2, 2, 2, 2}, false},
                                         {"resnet34", {3, 4, 6, 3}, false},
                                         {"resnet50", {3, 4, 6, 3}, true},
                                         {"resnet101", {3, 4, 23, 3}, true},
                                         {"resnet152", {3, 8, 36, 3}, true}};

const TimmNetwork* find_network(std::string_view name) {
  const auto* found = std::ranges::find(kTimmNetworks, name, &TimmNetwork::name);
  return found == std::end(kTimmNetworks) ? nullptr : found;
}

// A convolution and its norm.
void add_pair(Builder& build, const std::string& name, Count in, Count out, Count side) {
  build.convolution(name + ".convolution", in, out, side);
  build.batch_norm(name + ".normalization", out);
}

void add_timm_pair(Builder& build, const char* number, Count in, Count out, Count side) {
  build.convolution(std::string("conv") + number, in, out, side);
  build.batch_norm(std::string("bn") + number, out);
}

}  // namespace

void resnet(Sizes& sizes, Builder& build) {
  const std::size_t num_stages = std::max<std::size_t>(sizes.length("hidden_sizes"), 1);
  const auto widths = sizes.list("hidden_sizes", num_stages);
  const auto depths = sizes.list("depths", num_stages);
  const bool is_basic = sizes.text("layer_type") == "basic";
  Count in = sizes.of({"embedding_size"}, 64);
  add_pair(build, "embedder.embedder", sizes.of({"num_channels"}, 3), in, 7);
  build.keep_whole("embedder.embedder");
  build.keep_whole("encoder.stages.*.layers.*.shortcut");
  build.keep_whole("encoder.stages.*.layers.*.layer.*");
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    const Count out = widths[stage];
    const Count inner = std::max<Count>(out / 4, 1);
    bool has_shortcut = in != out || stage > 0 || sizes.flag("downsample_in_first_stage", false);
    build.blocks("encoder.stages." + std::to_string(stage) + ".layers", depths[stage], [&] {
      if (has_shortcut) add_pair(build, "shortcut", in, out, 1);
      if (is_basic) {
        add_pair(build, "layer.0", in, out, 3);
        add_pair(build, "layer.1", out, out, 3);
      } else {
        add_pair(build, "layer.0", in, inner, 1);
        add_pair(build, "layer.1", inner, inner, 3);
        add_pair(build, "layer.2", inner, out, 1);
      }
      in = out;
      has_shortcut = false;
    });
  }
}

bool is_timm_resnet(const std::string& architecture) {
  return find_network(architecture) != nullptr;
}

void timm_resnet(const std::string& architecture, Sizes& sizes, Builder& build) {
  const TimmNetwork& network = *find_network(architecture);
  const Count growth = network.is_bottleneck ? 4 : 1;
  Count in = 64;
  add_timm_pair(build, "1", 3, in, 7);
  for (std::size_t stage = 0; stage < network.depths.size(); ++stage) {
    const Count inner = Count{64} << stage;
    const Count out = inner * growth;
    build.blocks("layer" + std::to_string(stage + 1), network.depths[stage], [&] {
      if (in != out) {
        build.convolution("downsample.0", in, out, 1);
        build.batch_norm("downsample.1", out);
      }
      add_timm_pair(build, "1", in, inner, network.is_bottleneck ? 1 : 3);
      add_timm_pair(build, "2", inner, inner, 3);
      if (network.is_bottleneck) add_timm_pair(build, "3", inner, out, 1);
      in = out;
    });
  }
  build.linear("fc", in, sizes.of({"num_classes"}, 1000));
}

}  // namespace accel::launcher
