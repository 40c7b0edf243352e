// accel-trainer: trains a model that `accel export` wrote, without Python; `accel train` launches it. See docs/guides/accel-train.md.

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include <accel/error.h>

#include "train/train_settings.h"
#include "train/training_run.h"

int main(int argc, char** argv) {
  accel::train::TrainSettings settings;
  CLI::App app(
      "Trains an exported model: `accel train [FLAGS OF accel launch] MODEL.pt2 --data FILE...`",
      "accel train");
  accel::train::add_flags(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    accel::train::run_training(settings);
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("accel train").c_str());
    return accel::error_info(error.code()).exit_status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accel train: %s\n", error.what());
    return 1;
  }
  return 0;
}
