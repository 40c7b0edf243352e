// Filling places with modules.
//
// The modules that are left stand in a list, first the model's own. The next one goes to the place that is being filled when it fits,
// with all that is tied to it. Otherwise it is split into its parts, which take its turn; a module that cannot be split closes the
// place. One place, the first GPU or else the host, keeps room for the largest layer that is left, because layers on cpu and
// disk come there to be computed.
//
// Source: infer_auto_device_map() of accelerate 1.15.0, decision by decision, for the same maps.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include <torch/nn/module.h>

#include <accel/device_map.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/placement/module_outline.h"
#include "libaccel/placement/place_in_map.h"
#include "libaccel/placement/planning_log.h"

namespace accel {
namespace {

using placement::ModuleSizes;
using placement::OutlineModule;
using placement::OutlineTensor;
using placement::path_of;

// A module, or a tensor when there is none.
struct Item {
  std::string name;
  const OutlineModule* module = nullptr;
};
using Items = std::vector<Item>;
using Names = std::vector<std::string>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

bool is_below(const std::string& name, const std::string& module) {
  return (name + ".").find(module + ".") != std::string::npos;
}

void add_tensors(Items& items,
                 const std::string& parent,
                 const std::vector<OutlineTensor>& tensors) {
  std::unordered_set<const void*> seen;
  for (const OutlineTensor& tensor : tensors)
    if (seen.insert(tensor.id).second) items.push_back({path_of(parent, tensor.name), nullptr});
}

void add_children(Items& items, const std::string& parent, const OutlineModule& module) {
  std::unordered_set<const void*> seen;
  for (const OutlineModule& child : module.children)
    if (seen.insert(child.id).second) items.push_back({path_of(parent, child.name), &child});
}

Items parts_of(const Item& item) {
  Items parts;
  add_tensors(parts, item.name, item.module->parameters);
  add_children(parts, item.name, *item.module);
  return parts;
}

Items items_of(const OutlineModule& model) {
  Items items = parts_of({"", &model});
  add_tensors(items, "", model.buffers);
  return items;
}

std::string listed(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return "[" + text + "]";
}

bool is_split_further(const Item& item, const Names& unsplit) {
  return item.module != nullptr && !item.module->children.empty() &&
         std::ranges::count(unsplit, item.module->class_name) == 0;
}

LargestLayers largest_layers(const Items& items, const ModuleSizes& sizes, const Names& unsplit) {
  LargestLayers largest;
  for (const Item& item : items) {
    if (is_split_further(item, unsplit)) {
      Items children;
      add_children(children, item.name, *item.module);
      const LargestLayers inner = largest_layers(children, sizes, unsplit);
      if (inner.bytes > largest.bytes) largest = {inner.bytes, {}};
      if (inner.bytes == largest.bytes)
        largest.names.insert(largest.names.end(), inner.names.begin(), inner.names.end());
      continue;
    }
    const double bytes = sizes[item.name];
    if (bytes > largest.bytes) largest = {bytes, {}};
    if (bytes == largest.bytes) largest.names.push_back(item.name);
  }
  return largest;
}

// What has to lie where an item does.
struct Ties {
  Names parameters;  // outside of the item
  Items items;       // of those that are left, that hold them
  double bytes = 0;  // of the item and of them
};

class MapPlanner {
 public:
  MapPlanner(const OutlineModule& model, const DeviceMapOptions& options)
      : options_(options),
        sizes_(placement::sizes_of(
            model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes})),
        tied_(placement::tied_parameters(model)),
        left_(items_of(model)),
        largest_(largest_layers(left_, sizes_, options.no_split_module_classes)) {
    for (const auto& [place, bytes] : get_max_memory(options.max_memory))
      places_.push_back(
          {place, place == Placement("disk") ? kNoLimit : static_cast<double>(bytes)});
    if (std::ranges::count(places_, Placement("disk"), &Place::name) == 0)
      places_.push_back({"disk", kNoLimit});
    const bool has_mps = std::ranges::count(places_, Placement("mps"), &Place::name) > 0;
    for (Place& place : places_) {
      const bool is_first_gpu = &place == &places_.front() && is_gpu(place.name);
      place.keeps_room =
          has_mps ? place.name == Placement("mps") : is_first_gpu || place.name == Placement("cpu");
    }
  }

  DeviceMap plan() {
    while (!left_.empty()) place_next();
    warn_of_buffers();
    tell_unused();
    return options_.clean_result ? clean_device_map(std::move(map_)) : std::move(map_);
  }

 private:
  struct Place {
    Placement name;
    double limit = 0;
    bool keeps_room = false;  // for the largest layer
    double used = 0;
    double buffers = 0;
    double wanted = 0;  // by a module that found the place empty and too small
  };

  static bool is_gpu(const Placement& place) {
    return place != Placement("cpu") && place != Placement("disk");
  }
  [[nodiscard]] const Names& unsplit() const { return options_.no_split_module_classes; }

  void say(const std::string& text) const {
    if (options_.verbose) std::printf("%s\n", text.c_str());
  }

  void place_next() {
    const Item item = left_.front();
    left_.erase(left_.begin());
    say("\nTreating module " + item.name + ".");
    forget_largest(item.name);
    Place& place = places_[current_];
    const double reserved = place.keeps_room ? largest_.bytes : 0;
    const double free = place.limit - reserved - place.used;
    const Ties ties = ties_of(item.name, left_);
    if (ties.bytes <= free) return put(item, ties, place);
    if (!ties.parameters.empty() && sizes_[item.name] <= free && split_ties(item, ties)) return;
    if (sizes_[item.name] >= free && split(item, free)) return;
    if (place.used == 0 && options_.fallback_allocation && fall_back(item, ties, place)) return;
    if (place.used == 0) place.wanted = ties.bytes + reserved;
    place.used += reserved;
    ++current_;
    left_.insert(left_.begin(), item);
  }

  // The largest layer that is left may be another one without this.
  void forget_largest(const std::string& name) {
    std::erase_if(largest_.names, [&](const std::string& layer) {
      return layer == name || layer.starts_with(name + ".");
    });
    if (largest_.names.empty()) measure_largest();
  }
  void measure_largest() {
    Items modules;
    std::ranges::copy_if(left_, std::back_inserter(modules), [](const Item& item) {
      return item.module != nullptr;
    });
    largest_ = largest_layers(modules, sizes_, unsplit());
  }

  [[nodiscard]] Ties ties_of(const std::string& name, const Items& left) const {
    Ties ties{.parameters = {}, .items = {}, .bytes = sizes_[name]};
    for (const Names& group : tied_) {
      if (std::ranges::none_of(group, [&](const auto& one) { return is_below(one, name); }))
        continue;
      for (const std::string& parameter : group)
        if (!is_below(parameter, name)) ties.parameters.push_back(parameter);
    }
    for (const std::string& parameter : ties.parameters) {
      const auto holder = std::ranges::find_if(left, [&](const Item& item) {
        return parameter == item.name || parameter.starts_with(item.name + ".");
      });
      if (holder == left.end()) continue;
      ties.items.push_back(*holder);
      ties.bytes += sizes_[holder->name] - sizes_[parameter];
    }
    return ties;
  }

  static Names names_of(const Items& items) {
    Names names;
    for (const Item& item : items) names.push_back(item.name);
    return names;
  }

  void put(const Item& item, const Ties& ties, Place& place) {
    say("Putting " + item.name +
        (ties.items.empty() ? "" : " and " + listed(names_of(ties.items))) +
        " (size=" + text_of(ties.bytes) + ") on " + to_string(place.name) + ".");
    place.used += ties.bytes;
    map_[item.name] = place.name;
    for (const Item& tied : ties.items) {
      std::erase_if(left_, [&](const Item& other) { return other.name == tied.name; });
      map_[tied.name] = place.name;
    }
    if (item.module == nullptr || options_.offload_buffers) return;
    place.buffers += placement::sizes_of(*item.module,
                                         {.dtype = options_.dtype,
                                          .special_dtypes = options_.special_dtypes,
                                          .buffers_only = true})[""];
  }

  // The first of the tied modules that can be split is, so that less has to come along.
  bool split_ties(const Item& item, const Ties& ties) {
    for (const Item& tied : ties.items) {
      if (!is_split_further(tied, unsplit())) continue;
      say("Splitting " + tied.name + ".");
      const auto place = std::ranges::find(left_, tied.name, &Item::name);
      const Items parts = parts_of(tied);
      left_.insert(left_.erase(place), parts.begin(), parts.end());
      left_.insert(left_.begin(), item);
      measure_largest();
      return true;
    }
    say("None of the tied module can be split, going to the next device.");
    return false;
  }

  bool split(const Item& item, double free) {
    say("Not enough space on " + to_string(places_[current_].name) + " to put " + item.name +
        " (space available " + text_of(free) + ", module size " + text_of(sizes_[item.name]) +
        ").");
    if (!is_split_further(item, unsplit())) {
      say("This module cannot be split, going to the next device.");
      return false;
    }
    say("Splitting " + item.name + ".");
    const Items parts = parts_of(item);
    left_.insert(left_.begin(), parts.begin(), parts.end());
    measure_largest();
    return true;
  }

  // Moves the first module that fits to the front, breadth last.
  bool fall_back(const Item& item, const Ties& ties, const Place& place) {
    if (place.limit == kNoLimit) return false;
    const double limit = place.limit - std::max(largest_.bytes, ties.bytes);
    if (limit < 0) return false;
    const std::optional<Item> found = find_fitting(limit);
    if (!found) return false;
    take_out(*found);
    left_.insert(left_.begin(), item);
    left_.insert(left_.begin(), *found);
    return true;
  }

  [[nodiscard]] std::optional<Item> find_fitting(double limit) const {
    Items search = left_;
    while (!search.empty()) {
      const Item item = search.front();
      search.erase(search.begin());
      if (ties_of(item.name, search).bytes <= limit) return item;
      if (!is_split_further(item, unsplit())) continue;
      const Items parts = parts_of(item);
      search.insert(search.begin(), parts.begin(), parts.end());
    }
    return std::nullopt;
  }

  // Splits its parents among those that are left, and removes it.
  void take_out(const Item& item) {
    for (;;) {
      const auto holder = std::ranges::find_if(left_, [&](const Item& other) {
        return item.name == other.name || item.name.starts_with(other.name + ".");
      });
      const Item parent = *holder;
      const auto place = left_.erase(holder);
      if (parent.name == item.name) return;
      const Items parts = parts_of(parent);
      left_.insert(place, parts.begin(), parts.end());
    }
  }

  void warn_of_buffers() const {
    double buffers = 0;
    bool has_gpus = false;
    bool fits = false;
    for (const Place& place : places_)
      if (!is_gpu(place.name)) buffers += place.buffers;
    for (const Place& place : places_) {
      if (!is_gpu(place.name)) continue;
      has_gpus = true;
      fits = fits || place.limit >= buffers + place.used;
    }
    if (buffers == 0 || options_.offload_buffers || !has_gpus || fits) return;
    placement::warn(
        "Current model requires " + text_of(buffers) +
        " bytes of buffer for offloaded layers, which seems does not fit any GPU's remaining "
        "memory. If you are experiencing a OOM later, please consider using "
        "offload_buffers=True.");
  }

  void tell_unused() const {
    std::string lines;
    for (const Place& place : places_)
      if (place.wanted > 0)
        lines +=
            "\n  - " + to_string(place.name) + ": " + text_of(place.wanted) + " bytes required";
    if (lines.empty()) return;
    placement::inform(
        "Based on the current allocation process, no modules could be assigned to the "
        "following devices due to insufficient memory:" +
        lines);
  }

  static std::string text_of(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.15g", bytes);
    return text;
  }

  const DeviceMapOptions& options_;
  ModuleSizes sizes_;
  std::vector<Names> tied_;
  Items left_;
  LargestLayers largest_;
  std::vector<Place> places_;
  std::size_t current_ = 0;
  DeviceMap map_;
};

void clean_below(DeviceMap& map, const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  Names below;
  std::set<Placement> places;
  for (const auto& [name, place] : map) {
    if (!name.starts_with(prefix)) continue;
    below.push_back(name);
    places.insert(place);
  }
  if (places.size() == 1 && below.size() > 1) {
    for (const std::string& name : below) map.erase(name);
    map[module] = *places.begin();
  }
  std::set<std::string> children;
  for (const auto& [name, place] : map) {
    if (!name.starts_with(prefix) || name.size() <= module.size()) continue;
    children.insert(name.substr(0, name.find('.', prefix.size())));
  }
  for (const std::string& child : children) clean_below(map, child);
}

}  // namespace

std::pair<double, LargestLayers> calculate_maximum_sizes(
    const torch::nn::Module& model, const std::vector<std::string>& no_split_module_classes) {
  const OutlineModule outline = placement::outline_of(model);
  const ModuleSizes sizes = placement::sizes_of(outline, {});
  return {sizes[""], largest_layers(items_of(outline), sizes, no_split_module_classes)};
}

DeviceMap infer_auto_device_map(const torch::nn::Module& model, const DeviceMapOptions& options) {
  const OutlineModule outline = placement::outline_of(model);
  return MapPlanner(outline, options).plan();
}

DeviceMap clean_device_map(DeviceMap device_map, const std::string& module_name) {
  clean_below(device_map, module_name);
  return device_map;
}

void check_device_map(const torch::nn::Module& model, const DeviceMap& device_map) {
  const OutlineModule outline = placement::outline_of(model);
  Names unknown;
  for (const auto& [name, place] : device_map)
    if (placement::find_module(outline, name) == nullptr) unknown.push_back(name);
  if (!unknown.empty()) {
    placement::warn("The following device_map keys do not match any submodules in the model: " +
                    listed(unknown));
  }
  std::string uncovered;
  for (const checkpoint::NamedTensor& item : checkpoint::state_of(model)) {
    const bool is_covered = std::ranges::any_of(device_map, [&](const auto& entry) {
      return entry.first.empty() || item.name == entry.first ||
             item.name.starts_with(entry.first + ".");
    });
    if (!is_covered) uncovered += (uncovered.empty() ? "" : ", ") + item.name;
  }
  if (uncovered.empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "The device_map provided does not give any device for the following parameters: " + uncovered,
      "name their modules, or \"\" for the whole model");
}

void check_tied_parameters_on_same_device(const std::vector<Names>& tied_params,
                                          const DeviceMap& device_map) {
  for (const Names& group : tied_params) {
    std::set<Placement> places;
    std::string text;
    for (const std::string& name : group) {
      const Placement* const place = placement::place_in_map(device_map, name);
      if (place == nullptr)
        throw Error(ErrorCode::kInvalidArgument,
                    "The `device_map` does not contain the module " + name + ".",
                    "name it, or \"\" for the whole model");
      places.insert(*place);
      const bool is_word = std::holds_alternative<std::string>(*place);
      text += (text.empty() ? "'" : ", '") + name +
              "': " + (is_word ? "'" + to_string(*place) + "'" : to_string(*place));
    }
    if (places.size() > 1)
      placement::warn("Tied parameters are on different devices: {" + text +
                      "}. Please modify your custom device map or set `device_map='auto'`.");
  }
}

}  // namespace accel
