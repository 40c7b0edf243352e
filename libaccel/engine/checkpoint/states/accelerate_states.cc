#include "libaccel/engine/checkpoint/states/accelerate_states.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/schedulers.h>

#include "libaccel/engine/checkpoint/states/named_states.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "runtime/printable.h"

namespace accel::checkpoint {
namespace {

using launcher::Pickle;
using launcher::PickleNode;
using nlohmann::json;
using torch::optim::Optimizer;

c10::impl::GenericDict empty_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

c10::impl::GenericList generic_list(const std::vector<c10::IValue>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const c10::IValue& value : values) list.push_back(value);
  return list;
}

// ---- optimizers

// The class of LibTorch's that the optimizer is, where PyTorch has the same state by parameter.
const OptimizerTraits& portable_traits(const Optimizer& optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  if (traits != nullptr && is_element_wise(*traits)) return *traits;
  throw Error(ErrorCode::kUnsupported,
              std::string("the state of ") +
                  (traits == nullptr ? "an optimizer of a class of your own" : traits->name) +
                  " has no place in optimizer.bin",
              "save it in accel's own format: CheckpointFormat::kAccel");
}

// What PyTorch tells Adam from AdamW by.
std::optional<bool> decoupled_weight_decay(const OptimizerTraits& traits) {
  if (std::string_view(traits.name) == "AdamW") return true;
  if (std::string_view(traits.name) == "Adam") return false;
  return std::nullopt;
}

c10::IValue option_value(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return non_finite_number(value.get<std::string>());
  std::vector<c10::IValue> items;  // betas
  for (const json& item : value) items.push_back(option_value(item));
  return c10::ivalue::Tuple::create(std::move(items));
}

c10::IValue state_of_parameter(const OptimizerTraits& traits,
                               const std::string& name,
                               const json& numbers,
                               const safetensors::TensorMap& tensors) {
  auto state = empty_dict();
  const auto example = traits.make_state();
  for (const OptimizerField& field : traits.state_fields(*example)) {
    if (std::holds_alternative<std::int64_t*>(field.value)) {
      const auto count = numbers.at(field.name).get<double>();  // "step", a tensor in PyTorch
      state.insert(std::string(field.name), at::full({}, count, at::kFloat));
    } else if (const auto found = tensors.find(name + "." + field.name); found != tensors.end()) {
      state.insert(std::string(field.name), found->second);
    }
  }
  return state;
}

// "model_1:layer.weight" -> "layer.weight": as PyTorch knows it, which has one model in one file.
std::string name_in_model(const std::string& name) {
  const std::size_t colon = name.find(':');
  return name.starts_with("model_") && colon != std::string::npos ? name.substr(colon + 1) : name;
}

// Brings the file's state and groups into the form of our own files.
class OptimizerReading {
 public:
  OptimizerReading(const PythonOptimizer& file, const OptimizerTraits& traits)
      : file_(file), traits_(traits) {}

  // `present`: the optimizer as our own files have it, which names its parameters and options.
  SavedOptimizer run(const json& present) {
    const json& present_groups = present.at("param_groups");
    if (file_.groups.size() != present_groups.size())
      fail("has " + std::to_string(file_.groups.size()) + " parameter groups, the optimizer has " +
           std::to_string(present_groups.size()));
    json root = present;
    root["state"] = json::object();
    for (std::size_t g = 0; g < file_.groups.size(); ++g) {
      json& group = root.at("param_groups").at(g);
      read_options(file_.groups[g], group.at("options"));
      add_names(file_.groups[g], g, group.at("params"));
    }
    read_states(root.at("state"));
    return {std::move(tensors_), root.dump()};
  }

 private:
  using Option = PythonOptimizer::Option;
  using Parameter = PythonOptimizer::Parameter;

  [[noreturn]] void fail(const std::string& what) const {
    throw_optimizer_mismatch(file_.path, what);
  }

  // Whether the option is there and set.
  static std::optional<bool> flag(const PythonOptimizer::Group& group, const std::string& key) {
    const auto found = group.options.find(key);
    const bool* const value =
        found == group.options.end() ? nullptr : std::get_if<bool>(&found->second);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }

  void read_options(const PythonOptimizer::Group& group, json& options) const {
    if (const auto expected = decoupled_weight_decay(traits_)) {
      if (flag(group, "decoupled_weight_decay").value_or(*expected) != *expected)
        fail(std::string("is of ") + (*expected ? "Adam" : "AdamW") + ", the optimizer is " +
             traits_.name);
    }
    if (flag(group, "maximize").value_or(false))
      fail("was saved with maximize=True, which LibTorch's optimizers have not");
    for (auto& [key, value] : options.items()) {
      const auto saved = group.options.find(key);
      if (saved == group.options.end())
        fail("has no option " + key + ": it is of another class than " + traits_.name);
      value = option(saved->second, key, value);
    }
  }

  json option(const Option& saved, const std::string& key, const json& present) const {
    if (const auto* const value = std::get_if<bool>(&saved)) return *value;
    if (const auto* const number = std::get_if<double>(&saved)) {
      if (std::isfinite(*number)) return *number;
      return non_finite_text(*number);
    }
    const auto* const numbers = std::get_if<std::vector<double>>(&saved);
    if (numbers != nullptr && present.is_array() && numbers->size() == present.size())
      return *numbers;
    fail("has a value of " + key + " that " + traits_.name + " has no place for");
  }

  void add_names(const PythonOptimizer::Group& group, std::size_t g, const json& present) {
    if (group.params.size() != present.size())
      fail("has " + std::to_string(group.params.size()) + " parameters in group " +
           std::to_string(g) + ", the optimizer has " + std::to_string(present.size()));
    std::map<std::string, std::string> by_name;
    for (const json& item : present) {
      const auto name = item.get<std::string>();
      by_name.emplace(name_in_model(name), name);
    }
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const auto* const name = std::get_if<std::string>(&group.params[i]);
      if (name == nullptr) {
        names_[group.params[i]] = present[i].get<std::string>();
        continue;
      }
      const auto found = by_name.find(*name);
      if (found == by_name.end())
        fail("has " + printable(*name) + " in group " + std::to_string(g) +
             ", the optimizer has it not there");
      names_[group.params[i]] = found->second;
    }
  }

  void read_states(json& states) {
    for (const auto& [parameter, fields] : file_.states) {
      const auto name = names_.find(parameter);
      if (name == names_.end()) fail("has a state of a parameter that is in no group");
      json& numbers = states[name->second] = json::object();
      read_fields(name->second, fields, numbers);
    }
  }

  void read_fields(const std::string& name,
                   const std::map<std::string, PythonOptimizer::Field>& fields,
                   json& numbers) {
    const auto example = traits_.make_state();
    for (const OptimizerField& known : traits_.state_fields(*example)) {
      const auto saved = fields.find(known.name);
      const bool is_there = saved != fields.end();
      if (std::holds_alternative<std::int64_t*>(known.value)) {
        const auto count = is_there ? count_of(saved->second) : std::nullopt;
        if (!count) fail("has no " + std::string(known.name) + " of " + name);
        numbers[known.name] = *count;
      } else if (is_there && std::holds_alternative<at::Tensor>(saved->second)) {
        tensors_.insert_or_assign(name + "." + known.name, std::get<at::Tensor>(saved->second));
      }
    }
  }

  // A tensor in PyTorch.
  static std::optional<std::int64_t> count_of(const PythonOptimizer::Field& field) {
    if (const auto* const number = std::get_if<double>(&field))
      return static_cast<std::int64_t>(*number);
    const auto& tensor = std::get<at::Tensor>(field);
    if (tensor.is_meta() || tensor.numel() != 1) return std::nullopt;
    return static_cast<std::int64_t>(tensor.item<double>());
  }

  const PythonOptimizer& file_;
  const OptimizerTraits& traits_;
  std::map<Parameter, std::string> names_;  // ours
  safetensors::TensorMap tensors_;
};

// ---- states

c10::IValue python_value(const StateValue& value) {
  return std::visit(
      [](const auto& typed) -> c10::IValue {
        using T = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<T, std::vector<std::int64_t>> ||
                      std::is_same_v<T, std::vector<double>>) {
          return generic_list({typed.begin(), typed.end()});
        } else {
          return typed;
        }
      },
      value);
}

c10::impl::GenericDict dict_of(const StateDict& state) {
  auto dict = empty_dict();
  for (const auto& [key, value] : state.values) dict.insert(key, python_value(value));
  for (const auto& [key, tensor] : state.tensors) dict.insert(key, tensor);
  return dict;
}

// A list of numbers: of integers, or of doubles when any of them is one.
std::optional<StateValue> numbers_of(const Pickle& pickle, std::span<const PickleNode> items) {
  std::vector<std::int64_t> whole;
  std::vector<double> real;
  for (const PickleNode item : items) {
    const auto integer = pickle.integer(item);
    const auto number = pickle.real(item);
    if (!integer && !number) return std::nullopt;
    if (integer) whole.push_back(*integer);
    real.push_back(integer ? static_cast<double>(*integer) : *number);
  }
  if (whole.size() == real.size()) return StateValue(std::move(whole));
  return StateValue(std::move(real));
}

class StateReading {
 public:
  StateReading(PythonFile& file, std::vector<std::string>& left_out)
      : file_(file), pickle_(file.pickle()), left_out_(left_out) {}

  StateDict run() {
    const auto entries = pickle_.entries(pickle_.root());
    if (!entries)
      throw Error(ErrorCode::kCheckpointMismatch,
                  printable(file_.path().string()) + " holds something else than a dict");
    read(*entries, "", 0);
    return std::move(state_);
  }

 private:
  static constexpr int kMostLevels = 32;

  void read(std::span<const PickleNode> entries, const std::string& prefix, int level) {
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const auto key = pickle_.text(entries[i]);
      const std::string name =
          prefix +
          (key ? std::string(*key) : std::to_string(pickle_.integer(entries[i]).value_or(0)));
      add(name, entries[i + 1], level);
    }
  }

  void add(const std::string& name, PickleNode node, int level) {
    if (const auto flag = pickle_.boolean(node)) {
      state_.values.insert_or_assign(name, *flag);
    } else if (const auto whole = pickle_.integer(node)) {
      state_.values.insert_or_assign(name, *whole);
    } else if (const auto real = pickle_.real(node)) {
      state_.values.insert_or_assign(name, *real);
    } else if (const auto text = pickle_.text(node)) {
      state_.values.insert_or_assign(name, std::string(*text));
    } else if (file_.is_tensor(node)) {
      state_.tensors.insert_or_assign(name, file_.tensor(node));
    } else if (const auto entries = pickle_.entries(node); entries && level < kMostLevels) {
      read(*entries, name + ".", level + 1);
    } else if (const auto items = pickle_.sequence(node)) {
      auto numbers = numbers_of(pickle_, *items);
      if (!numbers) return left_out_.push_back(name);
      state_.values.insert_or_assign(name, *std::move(numbers));
    } else {
      left_out_.push_back(name);
    }
  }

  PythonFile& file_;
  const Pickle& pickle_;
  std::vector<std::string>& left_out_;
  StateDict state_;
};

// ---- generators

constexpr const char* kTorchSeedName = "torch_manual_seed";
constexpr const char* kCudaSeedName = "torch_cuda_manual_seed";
constexpr std::size_t kTwisterWords = 624;

// The words of a Mersenne Twister that begins with `seed`, as std::mt19937 has them.
std::vector<c10::IValue> words_of_seed(std::uint64_t seed) {
  std::vector<c10::IValue> words;
  auto word = static_cast<std::uint32_t>(seed);
  for (std::uint32_t i = 1; i <= kTwisterWords; ++i) {
    words.emplace_back(static_cast<std::int64_t>(word));
    word = 1812433253U * (word ^ (word >> 30)) + i;
  }
  return words;
}

// Tried on another one: what is wrong with it shows before anything is changed.
bool fits_a_generator(const at::Tensor& state) {
  try {
    at::detail::createCPUGenerator().set_state(state.contiguous());
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// LibTorch's generator writes its seed first.
std::uint64_t seed_of(const StateDict& state) {
  const auto found = state.tensors.find(kTorchSeedName);
  if (found == state.tensors.end() || found->second.nbytes() < sizeof(std::uint64_t)) return 0;
  return static_cast<std::uint64_t>(
      found->second.narrow(0, 0, sizeof(std::uint64_t)).view(at::kLong).item<std::int64_t>());
}

}  // namespace

c10::IValue accelerate_optimizer(Optimizer& optimizer,
                                 const ParameterNames& names,
                                 ParameterKeys keys) {
  std::ignore = portable_traits(optimizer);  // before its states are collected
  return accelerate_optimizer(optimizer, save_optimizer(optimizer, names), keys);
}

c10::IValue accelerate_optimizer(const Optimizer& optimizer,
                                 const SavedOptimizer& saved,
                                 ParameterKeys keys) {
  const OptimizerTraits& traits = portable_traits(optimizer);
  const json root = json::parse(saved.json);
  auto states = empty_dict();
  std::vector<c10::IValue> groups;
  std::set<std::string> used;  // names within models
  std::int64_t number = 0;
  for (const json& group : root.at("param_groups")) {
    auto options = empty_dict();
    for (const auto& [key, value] : group.at("options").items())
      options.insert(key, option_value(value));
    if (const auto decoupled = decoupled_weight_decay(traits))
      options.insert("decoupled_weight_decay", *decoupled);
    std::vector<c10::IValue> params;
    for (const json& item : group.at("params")) {
      const auto name = item.get<std::string>();
      if (keys == ParameterKeys::kNames && !used.insert(name_in_model(name)).second)
        throw Error(ErrorCode::kUnsupported,
                    "an optimizer over two models that both have " + name_in_model(name) +
                        " has no place in a file of FSDP",
                    "save it in accel's own format: CheckpointFormat::kAccel");
      const c10::IValue key =
          keys == ParameterKeys::kNames ? c10::IValue(name_in_model(name)) : c10::IValue(number++);
      const auto state = root.at("state").find(name);
      if (state != root.at("state").end())
        states.insert(key, state_of_parameter(traits, name, *state, saved.tensors));
      params.push_back(key);
    }
    options.insert("params", generic_list(params));
    groups.emplace_back(std::move(options));
  }
  auto dict = empty_dict();
  dict.insert("state", std::move(states));
  dict.insert("param_groups", generic_list(groups));
  return dict;
}

SavedOptimizer read_accelerate_optimizer(const PythonOptimizer& file,
                                         Optimizer& optimizer,
                                         const ParameterNames& names) {
  const OptimizerTraits& traits = portable_traits(optimizer);
  return OptimizerReading(file, traits).run(json::parse(save_optimizer(optimizer, names).json));
}

c10::IValue accelerate_state(const StateDict& state) {
  return dict_of(state);
}

c10::IValue accelerate_scheduler(const Stateful& scheduler) {
  const StateDict state = scheduler.state_dict();
  auto dict = dict_of(state);
  if (dynamic_cast<const LambdaLR*>(&scheduler) != nullptr) {
    // Its functions are not saved, there as here, but PyTorch asks for their list.
    const auto groups = std::get<std::vector<double>>(state.values.at("base_lrs")).size();
    dict.insert("lr_lambdas", generic_list(std::vector<c10::IValue>(groups)));
  }
  return dict;
}

StateDict read_accelerate_state(PythonFile& file, std::vector<std::string>& left_out) {
  return StateReading(file, left_out).run();
}

c10::IValue accelerate_random_states(const StateDict& state) {
  auto dict = empty_dict();
  for (const auto& [key, value] : state.values) dict.insert(key, python_value(value));
  const std::vector<c10::IValue> words = words_of_seed(seed_of(state));
  // random.getstate(): version, the words and the place among them, and what gauss() has left.
  std::vector<c10::IValue> internal = words;
  internal.emplace_back(static_cast<std::int64_t>(kTwisterWords));
  dict.insert(
      "random_state",
      c10::ivalue::Tuple::create(
          {std::int64_t{3}, c10::ivalue::Tuple::create(std::move(internal)), c10::IValue()}));
  // numpy.random.get_state(), whose array may be a list for set_state().
  dict.insert("numpy_random_seed",
              c10::ivalue::Tuple::create({std::string("MT19937"),
                                          generic_list(words),
                                          static_cast<std::int64_t>(kTwisterWords),
                                          std::int64_t{0},
                                          0.0}));
  std::vector<c10::IValue> devices;
  for (const auto& [key, tensor] : state.tensors) {
    if (key.starts_with(std::string(kCudaSeedName) + "."))
      devices.emplace_back(tensor);
    else
      dict.insert(key, tensor);
  }
  if (!devices.empty()) dict.insert(kCudaSeedName, generic_list(devices));
  return dict;
}

StateDict read_accelerate_random_states(PythonFile& file) {
  std::vector<std::string> of_python;
  StateDict state = StateReading(file, of_python).run();
  const auto step = state.values.try_emplace("step", std::int64_t{0}).first;
  const auto cpu = state.tensors.find(kTorchSeedName);
  const bool is_fit = std::holds_alternative<std::int64_t>(step->second) &&
                      (cpu == state.tensors.end() || fits_a_generator(cpu->second));
  if (!is_fit)
    throw Error(ErrorCode::kCheckpointIncomplete,
                printable(file.path().string()) + " has a step or a " +
                    std::string(kTorchSeedName) + " that no generator of this LibTorch saved",
                "copy it again, or save it with the same version of PyTorch");
  const Pickle& pickle = file.pickle();
  const auto devices = pickle.field(pickle.root(), kCudaSeedName);
  const auto list = devices ? pickle.sequence(*devices) : std::nullopt;
  for (std::size_t i = 0; list && i < list->size(); ++i)
    if (file.is_tensor((*list)[i]))
      state.tensors[std::string(kCudaSeedName) + "." + std::to_string(i)] = file.tensor((*list)[i]);
  return state;
}

std::span<const std::string_view> names_in_random_states() noexcept {
  static constexpr std::array<std::string_view, 6> kNames = {"numpy._core.multiarray _reconstruct",
                                                             "numpy.core.multiarray _reconstruct",
                                                             "numpy ndarray",
                                                             "numpy dtype",
                                                             "numpy.dtypes UInt32DType",
                                                             "_codecs encode"};
  return kNames;
}

}  // namespace accel::checkpoint
