#include "libaccel/engine/settings/deepspeed_sections.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/lion.h>
#include <accel/muon.h>

namespace accel::sharding {
namespace {

using nlohmann::json;

// Reads a section "type" and "params", and refuses what was not asked for.
class SectionReader {
 public:
  SectionReader(const json& section, std::string name, const std::string& path)
      : prefix_(name + ".params."), path_(path) {
    if (!section.is_object() || !section.value("type", json()).is_string())
      throw invalid(name, section, "a map with a type");
    type_ = section.at("type").get<std::string>();
    params_ = section.value("params", json::object());
    if (!params_.is_object()) throw invalid(name + ".params", params_, "a map");
  }

  [[nodiscard]] const std::string& type() const noexcept { return type_; }

  template <typename Number>
  SectionValue<Number> value(const char* key) {
    SectionValue<Number> result;
    const json* const found = take(key);
    if (found == nullptr) return result;
    result.is_automatic = *found == "auto";
    if (!result.is_automatic) result.number = number_of<Number>(key, *found);
    return result;
  }

  // One that nothing fills.
  std::optional<double> fixed(const char* key) {
    const json* const found = take(key);
    if (found == nullptr) return std::nullopt;
    refuse_automatic(key, *found);
    return number_of<double>(key, *found);
  }

  std::optional<std::tuple<double, double>> pair(const char* key) {
    const json* const found = take(key);
    if (found == nullptr) return std::nullopt;
    refuse_automatic(key, *found);
    if (!found->is_array() || found->size() != 2)
      throw invalid(prefix_ + key, *found, "a list of two numbers");
    return std::make_tuple(number_of<double>(key, found->at(0)),
                           number_of<double>(key, found->at(1)));
  }

  bool flag(const char* key, bool fallback) {
    const json* const found = take(key);
    if (found == nullptr) return fallback;
    refuse_automatic(key, *found);
    if (!found->is_boolean()) throw invalid(prefix_ + key, *found, "true or false");
    return found->get<bool>();
  }

  std::string text(const char* key, const char* fallback) {
    const json* const found = take(key);
    if (found == nullptr) return fallback;
    if (!found->is_string()) throw invalid(prefix_ + key, *found, "a text");
    return found->get<std::string>();
  }

  void finish() const {
    for (const auto& [key, value] : params_.items()) {
      if (std::find(taken_.begin(), taken_.end(), key) != taken_.end()) continue;
      throw Error(ErrorCode::kUnsupported,
                  path_ + ": " + prefix_ + key + " is not part of this build for " + type_,
                  "take it out of the file, or construct the object in the program");
    }
  }

  [[nodiscard]] Error unknown_type(const char* known) const {
    return Error(ErrorCode::kUnsupported,
                 path_ + ": " + prefix_.substr(0, prefix_.find('.')) + ".type is " + type_ +
                     ", expected " + known,
                 "construct it in the program, and take the section out of the file");
  }

 private:
  const json* take(const char* key) {
    taken_.emplace_back(key);
    const auto found = params_.find(key);
    return found == params_.end() || found->is_null() ? nullptr : &*found;
  }

  template <typename Number>
  Number number_of(const char* key, const json& value) const {
    const bool fits = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
    if (!fits || value.get<double>() < 0) {
      throw invalid(prefix_ + key,
                    value,
                    std::is_integral_v<Number> ? "a whole number from 0 on" : "a number from 0 on");
    }
    return value.get<Number>();
  }

  void refuse_automatic(const char* key, const json& value) const {
    if (value != "auto") return;
    const std::string name = prefix_ + key;
    throw Error(ErrorCode::kConfigInvalidValue,
                path_ + ": `" + name + "` not found in kwargs. Please specify `" + name +
                    "` without `auto` (set to correct value) in the DeepSpeed config file",
                "set a number in the file");
  }

  [[nodiscard]] Error invalid(const std::string& key,
                              const json& value,
                              const std::string& expected) const {
    return Error(ErrorCode::kConfigInvalidValue,
                 path_ + ": " + key + " is " +
                     value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 64) +
                     ", expected " + expected,
                 "correct it in the file");
  }

  std::string prefix_;
  std::string path_;
  std::string type_;
  json params_;
  std::vector<std::string> taken_;
};

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

template <typename Optimizer, typename Options>
std::shared_ptr<torch::optim::Optimizer> made(const OptimizerSection& section,
                                              const DummyOptim& dummy,
                                              Options options,
                                              double default_lr) {
  options.lr(section.lr.value_or(dummy.lr, default_lr));
  options.weight_decay(section.weight_decay.value_or(dummy.weight_decay, 0));
  if constexpr (requires { options.betas(); }) {
    if (section.betas) options.betas(*section.betas);
  }
  if constexpr (requires { options.eps(); }) {
    if (section.eps) options.eps(*section.eps);
  }
  if constexpr (requires { options.momentum(); }) {
    if (section.momentum) options.momentum(*section.momentum);
  }
  return std::make_shared<Optimizer>(dummy.params, std::move(options));
}

}  // namespace

OptimizerSection parse_optimizer_section(const json& section, const std::string& path) {
  SectionReader reader(section, "optimizer", path);
  OptimizerSection result;
  result.type = lower_case(reader.type());
  const bool is_adam = result.type == "adam" || result.type == "adamw";
  const bool has_momentum = result.type == "sgd" || result.type == "muon";
  const bool has_betas = is_adam || result.type == "lion";
  if (!has_momentum && !has_betas && result.type != "adagrad")
    throw reader.unknown_type("Adam, AdamW, SGD, Adagrad, Lion or Muon");
  result.lr = reader.value<double>("lr");
  result.weight_decay = reader.value<double>("weight_decay");
  if (has_betas) result.betas = reader.pair("betas");
  if (has_momentum) result.momentum = reader.fixed("momentum");
  if (is_adam || result.type == "adagrad") result.eps = reader.fixed("eps");
  if (is_adam) {
    // DeepSpeed's Adam decays apart from the gradient, too, unless it is told not to.
    result.adam_w_mode = reader.flag("adam_w_mode", true) || result.type == "adamw";
    std::ignore = reader.flag("torch_adam", false);  // which kernel
    if (!reader.flag("bias_correction", true)) {
      throw Error(ErrorCode::kUnsupported,
                  path + ": optimizer.params.bias_correction is false, which torch's Adam has not",
                  "leave it out");
    }
  }
  reader.finish();
  return result;
}

SchedulerSection parse_scheduler_section(const json& section, const std::string& path) {
  SectionReader reader(section, "scheduler", path);
  SchedulerSection result;
  result.type = reader.type();
  const bool decays = result.type == "WarmupDecayLR";
  if (!decays && result.type != "WarmupLR") throw reader.unknown_type("WarmupLR or WarmupDecayLR");
  result.warmup_min_lr = reader.value<double>("warmup_min_lr");
  result.warmup_max_lr = reader.value<double>("warmup_max_lr");
  result.warmup_num_steps = reader.value<std::int64_t>("warmup_num_steps");
  if (decays) result.total_num_steps = reader.value<std::int64_t>("total_num_steps");
  const std::string type = reader.text("warmup_type", "log");
  if (type != "log" && type != "linear") {
    throw Error(ErrorCode::kConfigInvalidValue,
                path + ": scheduler.params.warmup_type is '" + type + "', expected log or linear",
                "correct it in the file");
  }
  result.is_linear = type == "linear";
  reader.finish();
  return result;
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSection& section,
                                                        const DummyOptim& dummy) {
  using namespace torch::optim;  // NOLINT: of the class names below
  if (section.type == "sgd") return made<SGD>(section, dummy, SGDOptions(1e-3), 1e-3);
  if (section.type == "adagrad") return made<Adagrad>(section, dummy, AdagradOptions(), 1e-2);
  if (section.type == "lion") return made<accel::Lion>(section, dummy, LionOptions(), 1e-4);
  if (section.type == "muon") return made<accel::Muon>(section, dummy, MuonOptions(), 1e-3);
  if (!section.adam_w_mode) return made<Adam>(section, dummy, AdamOptions(), 1e-3);
  return made<AdamW>(section, dummy, AdamWOptions(), 1e-3);
}

std::shared_ptr<Scheduler> make_scheduler(const SchedulerSection& section,
                                          const DummyScheduler& dummy,
                                          torch::optim::Optimizer& optimizer,
                                          int num_processes) {
  DeepSpeedWarmupOptions options;
  const double own_lr = optimizer.param_groups().front().options().get_lr();
  options.warmup_min_lr = section.warmup_min_lr.value_or(0, options.warmup_min_lr);
  options.warmup_max_lr = section.warmup_max_lr.value_or(own_lr, options.warmup_max_lr);
  options.warmup_num_steps = section.warmup_num_steps.value_or(
      std::max<std::int64_t>(1, dummy.warmup_num_steps), options.warmup_num_steps);
  options.linear = section.is_linear;
  if (section.type == "WarmupLR") return std::make_shared<WarmupLR>(optimizer, options);
  const bool is_said = section.total_num_steps.number ||
                       (section.total_num_steps.is_automatic && dummy.total_num_steps);
  if (!is_said) {
    throw Error(ErrorCode::kConfigInvalidValue,
                "`scheduler.params.total_num_steps` not found in kwargs. Please specify "
                "`scheduler.params.total_num_steps` without `auto` (set to correct value) in the "
                "DeepSpeed config file or pass it in kwargs",
                "set total_num_steps of the DummyScheduler");
  }
  const std::int64_t total = dummy.total_num_steps.value_or(0);
  const std::int64_t own = (total + num_processes - 1) / num_processes;
  options.total_num_steps = section.total_num_steps.value_or(own, own);
  return std::make_shared<WarmupDecayLR>(optimizer, options);
}

}  // namespace accel::sharding
