// An archive is a TorchScript object whose attributes are the fields. It can be read only after it was written: so each state
// passes through a buffer of bytes, one at a time when it is saved, all of this rank at once when they are loaded.
//
// In JSON a field is a boolean, an integer, a number with a fraction, a text or null; and {"double": "nan"}, {"ints": [...]},
// {"doubles": [...]}, {"tuple": [...]}, since what it is read back as depends on the type.

#include "libaccel/engine/checkpoint/states/archived_optimizer.h"

#include <cmath>
#include <tuple>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/named_states.h"
#include "libaccel/tensors/archive_form.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel::checkpoint {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr const char* kRemedy =
    "override its save() and load() by torch::optim::serialize<State, Options>(archive, *this), "
    "and serialize() of both "
    "classes; save_model() saves the weights";

// Options of the stand-in, which has them as text.
struct NoOptions final : torch::optim::OptimizerCloneableOptions<NoOptions> {};

json number_to_json(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", non_finite_text(value)}};
}

double number_from_json(const json& value) {
  return value.is_number() ? value.get<double>()
                           : non_finite_number(value.at("double").get<std::string>());
}

json to_json(const c10::IValue& value, const std::string& what) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return number_to_json(value.toDouble());
  if (value.isString()) return value.toStringRef();
  json list = json::array();
  if (value.isIntList()) return {{"ints", value.toIntVector()}};
  if (value.isDoubleList()) {
    for (const double number : value.toDoubleVector()) list.push_back(number_to_json(number));
    return {{"doubles", std::move(list)}};
  }
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements())
      list.push_back(to_json(element, what));
    return {{"tuple", std::move(list)}};
  }
  throw Error(ErrorCode::kUnsupported,
              what + " is of type " + value.tagKind() +
                  ": only tensors, numbers, texts, lists of numbers and tuples can be kept",
              "write it as several of those in serialize(), each under a name of its own");
}

c10::IValue from_json(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.contains("double")) return number_from_json(value);
  if (value.contains("ints")) return value.at("ints").get<std::vector<std::int64_t>>();
  if (value.contains("doubles")) {
    std::vector<double> numbers;
    for (const json& number : value.at("doubles")) numbers.push_back(number_from_json(number));
    return numbers;
  }
  std::vector<c10::IValue> elements;
  for (const json& element : value.at("tuple")) elements.push_back(from_json(element));
  return c10::ivalue::Tuple::create(std::move(elements));
}

ArchivedFields fields_in(OutputArchive& archive, const std::string& what) {
  InputArchive read = written(archive);
  ArchivedFields fields;
  json values = json::object();
  for (const std::string& key : read.keys()) {
    c10::IValue value;
    read.read(key, value);
    if (value.isTensor() && value.toTensor().defined()) {
      fields.tensors.emplace(key, value.toTensor());
    } else if (value.isTensor()) {
      values[key] = nullptr;
    } else {
      values[key] = to_json(value, "the field " + key + " of " + what);
    }
  }
  fields.values = values.dump();
  return fields;
}

void write_fields(const ArchivedFields& fields, OutputArchive& archive) {
  const json values = json::parse(fields.values);  // items() refers to it
  for (const auto& [key, value] : values.items()) archive.write(key, from_json(value));
  for (const auto& [key, tensor] : fields.tensors) archive.write(key, c10::IValue(tensor));
}

std::string archive_key(const at::Tensor& parameter) {
  return std::to_string(reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl()));
}

at::Tensor count_of(std::size_t count) {
  return at::tensor(static_cast<std::int64_t>(count), at::kLong);
}

[[noreturn]] void refuse_to_archive(const Optimizer& optimizer, const std::string& why) {
  throw Error(ErrorCode::kUnsupported,
              "an optimizer of type " + c10::demangle(typeid(optimizer).name()) +
                  " has states that cannot be saved: it is none of " + optimizer_names() +
                  ", and " + why,
              std::string(kRemedy) + "; or, without sharding, derive it from accel::Stateful too");
}

// What the class does not do, LibTorch refuses.
template <typename Part>
void serialize(const Part& part, OutputArchive& archive, const std::string& what) {
  try {
    part.serialize(archive);
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kUnsupported,
                what + " cannot be saved: " + error.what_without_backtrace(),
                kRemedy);
  }
}

std::string options_text(const OptimizerOptions& options, const std::string& type) {
  OutputArchive archive;
  serialize(options, archive, "the options of " + type);
  ArchivedFields fields = fields_in(archive, "the options of " + type);
  if (!fields.tensors.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "the option " + fields.tensors.begin()->first + " of " + type + " is a tensor",
                "keep it in the states");
  }
  return std::move(fields.values);
}

void write_groups(ArchivedOptimizer& archived,
                  const std::vector<OptimizerParamGroup>& groups,
                  OutputArchive& archive) {
  // LibTorch takes what a key names once: one that is listed again gets the key of none.
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto key = [&seen](const at::Tensor& parameter) {
    return seen.insert(parameter.unsafeGetTensorImpl()).second ? archive_key(parameter) : "0";
  };
  archive.write("param_groups/size", count_of(groups.size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    OutputArchive group(archive.compilation_unit());
    group.write("params/size", count_of(groups[g].params().size()));
    for (std::size_t i = 0; i < groups[g].params().size(); ++i)
      group.write("params/" + std::to_string(i), c10::IValue(key(groups[g].params()[i])));
    OutputArchive options(archive.compilation_unit());
    write_fields({.values = archived.options_of(g), .tensors = {}}, options);
    group.write("options", options);
    archive.write("param_groups/" + std::to_string(g), group);
  }
}

}  // namespace

ArchivedOptimizer::ArchivedOptimizer(Optimizer& optimizer,
                                     std::vector<std::vector<at::Tensor>> groups)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::make_unique<NoOptions>()),
      type_(c10::demangle(typeid(optimizer).name())) {
  if (const auto why = why_unusual(optimizer)) refuse_to_archive(optimizer, *why);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    options_.push_back(options_text(optimizer.param_groups()[g].options(), type_));
    // Not by add_param_group(), which refuses parameters that are divided.
    param_groups_.emplace_back(std::move(groups[g]), std::make_unique<NoOptions>());
  }
}

torch::Tensor ArchivedOptimizer::step(LossClosure /*closure*/) {
  throw Error(ErrorCode::kUnsupported, "this optimizer stands for the one of a checkpoint");
}

ArchivedFields fields_of(const torch::optim::OptimizerParamState& state, const std::string& what) {
  OutputArchive archive;
  serialize(state, archive, what);
  return fields_in(archive, what);
}

void load_archived(Optimizer& optimizer, ArchivedOptimizer& archived) {
  const std::vector<OptimizerParamGroup>& groups = optimizer.param_groups();
  OutputArchive archive;
  archive.write("pytorch_version", c10::IValue("1.5.0"));  // of the form, whatever the library's is
  OutputArchive states(archive.compilation_unit());
  std::unordered_set<const c10::TensorImpl*> written_for;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& from = archived.param_groups().at(g).params().at(i);
      const auto found = archived.state().find(from.unsafeGetTensorImpl());
      if (found == archived.state().end()) continue;
      if (!written_for.insert(groups[g].params()[i].unsafeGetTensorImpl()).second) continue;
      OutputArchive state(archive.compilation_unit());
      write_fields(static_cast<const ArchivedState&>(*found->second).fields, state);
      states.write(archive_key(groups[g].params()[i]), state);
    }
  }
  archive.write("state", states);
  OutputArchive written_groups(archive.compilation_unit());
  write_groups(archived, groups, written_groups);
  archive.write("param_groups", written_groups);
  InputArchive read = written(archive);
  optimizer.state().clear();
  optimizer.load(read);
  if (optimizer.state().size() != written_for.size()) {
    refuse_to_archive(optimizer,
                      "its load() took " + std::to_string(optimizer.state().size()) +
                          " states of " + std::to_string(written_for.size()));
  }
}

std::unique_ptr<ArchivedOptimizer> archive_of(Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const OptimizerParamGroup& group : optimizer.param_groups())
    groups.push_back(group.params());
  auto archived = std::make_unique<ArchivedOptimizer>(optimizer, std::move(groups));
  for (const auto& [parameter, state] : optimizer.state()) {
    auto kept = std::make_unique<ArchivedState>();
    kept->fields = fields_of(*state, "a state of " + archived->type());
    archived->state()[parameter] = std::move(kept);
  }
  return archived;
}

SavedOptimizer save_archived(ArchivedOptimizer& optimizer, const ParameterNames& names) {
  const auto write_state = [](const torch::optim::OptimizerParamState& state,
                              const std::string& name,
                              safetensors::TensorMap& tensors) -> json {
    const ArchivedFields& fields = static_cast<const ArchivedState&>(state).fields;
    json keys = json::array();
    for (const auto& [key, tensor] : fields.tensors) {
      keys.push_back(key);
      tensors.emplace(name + "." + key, tensor);
    }
    return {{"values", json::parse(fields.values)}, {"tensors", std::move(keys)}};
  };
  const auto write_options = [&](std::size_t g) { return json::parse(optimizer.options_of(g)); };
  return save_by_names(optimizer, names, {optimizer.type(), write_state, write_options});
}

void read_archived(ArchivedOptimizer& archived,
                   const ParameterNames& names,
                   SavedOptimizer saved,
                   const std::string& what) {
  const json root = json::parse(saved.json);
  const json& states = root.at("state");
  archived.state().clear();
  const auto unique = unique_groups(archived);
  for (std::size_t g = 0; g < unique.size(); ++g) {
    archived.options_of(g) = root.at("param_groups").at(g).at("options").dump();
    const std::vector<at::Tensor>& parameters = unique[g];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = names.name_of(parameters[i], g, i);
      if (!states.contains(name)) continue;
      auto state = std::make_unique<ArchivedState>();
      state->fields.values = states.at(name).at("values").dump();
      for (const json& key : states.at(name).at("tensors")) {
        const std::string field = key.get<std::string>();
        const auto tensor = saved.tensors.find(name + "." + field);
        if (tensor == saved.tensors.end())
          throw_mismatch(what + ".safetensors lacks the tensor " + name + "." + field);
        state->fields.tensors.emplace(field, std::move(tensor->second));
        saved.tensors.erase(tensor);
      }
      archived.state()[parameters[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }
  if (!saved.tensors.empty())
    throw_mismatch(what + ".safetensors holds the unknown tensor " + saved.tensors.begin()->first);
}

}  // namespace accel::checkpoint
