#include "launcher/commands/export/export_command.h"

#include <chrono>
#include <cstdio>
#include <optional>

#include <nlohmann/json.hpp>

#include "launcher/commands/export/export_script.h"
#include "launcher/commands/python/python_script.h"
#include "launcher/flags/command_parser.h"
#include "launcher/system/own_environment.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

constexpr const char* kExport = "export";
constexpr const char* kExportingPython = "the exporting Python";
// A model of many billions of parameters takes an hour or more; nobody waits for ever without seeing it.
constexpr std::chrono::hours kExportLimit{24};

struct ExportArguments {
  std::string model;
  std::string output;
  std::string python;
  std::string task;
  std::string loss;
  std::vector<std::string> dynamic;
  std::string weights = "inside";
  bool random_weights = false;
  bool attention_mask = false;
  bool no_dropout = false;
  std::vector<std::string> compile;
  bool trust_remote_code = false;
  int seed = 0;
  std::optional<int> batch_size;
  int max_cache_len = 0;
  int sequence_length = 64;
};

void add_subject_options(CLI::App& app, ExportArguments& arguments) {
  app.add_option("model",
                 arguments.model,
                 "hf:, timm:, torchvision: or diffusers: and a name or a\n"
                 "folder (hf: also takes a config.json), or\n"
                 "MODULE:FACTORY, whose example_inputs() gives the inputs")
      ->required();
  app.add_option("-o,--output", arguments.output, "the file to write, model.pt2")->required();
  app.add_option("--task",
                 arguments.task,
                 "what a model of hf: is trained for: causal-lm, masked-lm,\n"
                 "classification, seq2seq, image or image-text; its\n"
                 "configuration says it where this is not given")
      ->check(CLI::IsMember(
          {"causal-lm", "masked-lm", "classification", "seq2seq", "image", "image-text"}));
  app.add_option("--loss",
                 arguments.loss,
                 "inside: the model takes labels and gives its loss, which is\n"
                 "the default; logits: it does not")
      ->check(CLI::IsMember({"inside", "logits"}));
  app.add_flag("--attention_mask", arguments.attention_mask, "the model takes a mask as well");
  app.add_flag("--no_dropout", arguments.no_dropout, "all rates of dropout are 0");
  app.add_flag("--random_weights",
               arguments.random_weights,
               "random weights, and not those of the folder or name");
  app.add_option("--seed", arguments.seed, "of the random weights; 0 by default");
  app.add_flag("--trust_remote_code",
               arguments.trust_remote_code,
               "run Python code that comes with the model");
}

void add_file_options(CLI::App& app, ExportArguments& arguments) {
  app.add_option("--dynamic",
                 arguments.dynamic,
                 "which sizes of the inputs may differ from the example:\n"
                 "batch, sequence, or batch,sequence")
      ->delimiter(',')
      ->check([](const std::string& word) -> std::string {
        return word == "batch" || word == "sequence" ? "" : word + " is neither batch nor sequence";
      });
  app.add_option("--batch_size",
                 arguments.batch_size,
                 "of the example, 2 by default; with --max_cache_len the rows\n"
                 "of the cache, 1 by default")
      ->check(CLI::PositiveNumber);
  app.add_option("--sequence_length", arguments.sequence_length, "of the example; 64 by default")
      ->check(CLI::PositiveNumber);
  app.add_option("--weights",
                 arguments.weights,
                 "inside: in the file, which is the default; beside: in\n"
                 "model.safetensors in its folder, as from_pretrained() reads\n"
                 "them")
      ->check(CLI::IsMember({"inside", "beside"}));
  app.add_option("--max_cache_len",
                 arguments.max_cache_len,
                 "for accel generate: a model of hf: with a cache of keys and\n"
                 "values for so many tokens, which is not for training")
      ->check(CLI::PositiveNumber);
  app.add_option("--compile",
                 arguments.compile,
                 "also write machine code of AOTInductor for the CPU of this\n"
                 "machine: eval, of the graph of eval(); train, of the loss and\n"
                 "its gradients; or eval,train. Needs a C++ compiler here")
      ->delimiter(',')
      ->check(CLI::IsMember({"eval", "train"}));
  app.add_option(
      "--python", arguments.python, "the Python to run; that of a launch where it is not given");
}

nlohmann::json request_of(const ExportArguments& arguments) {
  return {{"model", arguments.model},
          {"output", arguments.output},
          {"task", arguments.task},
          {"loss", arguments.loss},
          {"dynamic", arguments.dynamic},
          {"weights", arguments.weights},
          {"random_weights", arguments.random_weights},
          {"seed", arguments.seed},
          {"batch_size", arguments.batch_size.value_or(arguments.max_cache_len > 0 ? 1 : 2)},
          {"max_cache_len", arguments.max_cache_len},
          {"sequence_length", arguments.sequence_length},
          {"attention_mask", arguments.attention_mask},
          {"dropout", !arguments.no_dropout},
          {"compile", arguments.compile},
          {"trust_remote_code", arguments.trust_remote_code}};
}

std::string report_of(const nlohmann::json& facts) {
  const auto differences = facts.value("differences", nlohmann::json::object());
  const std::string compiled = text_at(differences, "compiled");
  const std::string model =
      text_at(facts, "class") + " with " + text_at(facts, "parameters") + " parameters";
  const std::string places = text_at(facts, "max_cache_len");
  if (!places.empty())
    return model + " and a cache for " + places +
           " tokens; its largest difference from the module: " + text_at(differences, "eval");
  return model + "; its largest differences from the module: " + text_at(differences, "eval") +
         " in eval(), " + (compiled.empty() ? "" : compiled + " compiled, ") +
         text_at(differences, "train") + " in train(), " + text_at(differences, "gradients") +
         " in the gradients";
}

Result<std::string> run_export(const ExportArguments& arguments) {
  const EnvMap environment = own_environment();
  const auto python =
      choose_python(arguments.python, environment, "torch and the library of the model");
  if (!python) return python.error();
  auto facts = run_script(
      *python, export_script(), request_of(arguments), environment, kExportLimit, kExportingPython);
  if (!facts) {
    Error error = std::move(facts).error();
    return std::move(
        error.while_doing("exporting " + printable(arguments.model) + " with " + *python));
  }
  return printable(arguments.output) + ": " + report_of(*facts);
}

}  // namespace

Result<std::string> export_report(std::string_view output, int exit_code) {
  const auto facts = script_answer(output, exit_code, kExportingPython);
  if (!facts) return facts.error();
  return report_of(*facts);
}

int export_command(const std::vector<std::string>& words) {
  ExportArguments arguments;
  CommandParser line(
      kExport,
      "Write a model of Python as a file that libaccel trains without Python. Needs a "
      "Python with torch and the library of the model, once.");
  add_subject_options(line.app(), arguments);
  add_file_options(line.app(), arguments);
  if (const auto status = line.parse(words)) return *status;
  const auto report = run_export(arguments);
  if (!report) return print_error(kExport, report.error());
  std::puts(report->c_str());
  return 0;
}

}  // namespace accel::launcher
