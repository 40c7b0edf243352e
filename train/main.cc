// accel-trainer: trains a model that `accel export` wrote, without Python; `accel train` launches it. See docs/guides/accel-train.md.
// With `plan` before all other arguments it tells what that would take, and `accel plan` becomes it. See docs/guides/plan.md. With
// `generate` it generates tokens, and `accel generate` becomes it. See docs/guides/generate.md.

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <accel/error.h>

#include "train/generation/generate_settings.h"
#include "train/generation/generation.h"
#include "train/plan_report.h"
#include "train/plan_settings.h"
#include "train/train_settings.h"
#include "train/training_plan.h"
#include "train/training_run.h"

namespace {

// Its errors by their ids, on stderr; the exit status.
int guarded(const char* command, const std::function<void()>& act) {
  try {
    act();
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render(command).c_str());
    return accel::error_info(error.code()).exit_status;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", command, error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", command, error.what());
    return 1;
  }
  return 0;
}

int plan(int argc, char** argv) {
  accel::train::PlanSettings settings;
  CLI::App app("What training an exported model takes: `accel plan MODEL.pt2`", "accel plan");
  accel::train::add_flags(app, settings);
  CLI11_PARSE(app, argc, argv);
  return guarded("accel plan", [&] {
    const accel::train::TrainingPlan made = accel::train::plan_training(settings);
    const std::string text = settings.json ? accel::train::plan_json(made, settings)
                                           : accel::train::plan_table(made, settings);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
      throw accel::Error(accel::ErrorCode::kFileIo, "the plan cannot be written");
  });
}

int generate(int argc, char** argv) {
  accel::train::GenerateSettings settings;
  CLI::App app(
      "Generates tokens with an exported model: `accel generate MODEL.pt2 --prompt_ids 1,2`",
      "accel generate");
  accel::train::add_flags(app, settings);
  CLI11_PARSE(app, argc, argv);
  return guarded("accel generate", [&] { accel::train::run_generation(settings); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "plan") return plan(argc - 1, argv + 1);
  if (command == "generate") return generate(argc - 1, argv + 1);
  accel::train::TrainSettings settings;
  CLI::App app(
      "Trains an exported model: `accel train [FLAGS OF accel launch] MODEL.pt2 --data FILE...`",
      "accel train");
  accel::train::add_flags(app, settings);
  CLI11_PARSE(app, argc, argv);
  return guarded("accel train", [&] { accel::train::run_training(settings); });
}
