#include "launcher/commands/plot/plot_command.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "launcher/commands/plot/svg_picture.h"
#include "launcher/commands/plot/text_picture.h"
#include "launcher/curves/panels.h"
#include "launcher/curves/run_log.h"
#include "launcher/curves/shown_curves.h"
#include "launcher/flags/command_parser.h"
#include "launcher/system/own_environment.h"
#include "launcher/text/faults.h"
#include "launcher/text/terminal_text.h"
#include "runtime/printable.h"
#include "runtime/text/counted.h"
#include "runtime/text/number_text.h"
#include "runtime/unique_fd.h"
#include "runtime/write_all.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kPlot = "plot";

struct PlotArguments {
  std::vector<std::string> runs;
  std::vector<std::string> metrics;
  std::string axis = "step";
  double smooth = 0;
  std::string out;
  bool is_json = false;
  bool is_ascii = false;
  std::size_t width = 0;  // 0: the terminal's
  std::size_t height = 12;
};

void add_plot_options(CLI::App& app, PlotArguments& arguments) {
  app.add_option("run", arguments.runs, "a folder that trackers write into, or a file of theirs")
      ->required();
  app.add_option("--metric",
                 arguments.metrics,
                 "draw this one alone, or those of a pattern as 'loss*' (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--x", arguments.axis, "what the curves are drawn over (step)")
      ->check(CLI::IsMember({"step", "time"}));
  app.add_option(
         "--smooth", arguments.smooth, "0 to below 1: the weight of the values before each (0)")
      ->check([](const std::string& text) {
        const auto weight = number_of<double>(text);
        const bool is_weight = weight && *weight >= 0 && *weight < 1;
        return is_weight ? "" : "'" + printable(text) + "' is not a number from 0 to below 1";
      });
  app.add_option("--out", arguments.out, "write an SVG file instead")
      ->check([](const std::string& path) {
        return path.ends_with(".svg") ? "" : "'" + printable(path) + "' does not end in .svg";
      });
  app.add_flag(
         "--json", arguments.is_json, "print what the dashboard shows of one run's folder, as JSON")
      ->excludes("--metric", "--x", "--smooth", "--out");
  app.add_flag("--ascii", arguments.is_ascii, "draw with ASCII letters alone");
  app.add_option("--width", arguments.width, "columns of a line; those of the terminal, else 80")
      ->check(CLI::Range(40, 1000));
  app.add_option("--height", arguments.height, "rows of each panel (12)")
      ->check(CLI::Range(2, 200));
}

int print_shown(const std::vector<std::string>& runs) {
  if (runs.size() != 1)
    return print_error(
        kPlot,
        usage_error("--json takes one run, and there are " + std::to_string(runs.size()),
                    "name one folder, or one file"));
  std::puts(to_json(curves_at(runs.front())).c_str());
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return print_error(kPlot, Error(ErrorCode::kFileIo, "cannot write the curves to stdout"));
}

Result<std::vector<RunLog>> all_runs(const std::vector<std::string>& paths) {
  std::vector<RunLog> runs;
  for (const std::string& path : paths) {
    auto found = read_runs(path);
    if (!found) return std::move(found).error();
    std::ranges::move(*found, std::back_inserter(runs));
  }
  return runs;
}

void tell_of_broken(const std::vector<RunLog>& runs) {
  for (const RunLog& run : runs) {
    if (run.num_broken > 0)
      print_notice(kPlot,
                   printable(run.name) + ": left out " + counted(run.num_broken, "broken line"));
    if (run.empty()) print_notice(kPlot, printable(run.name) + " has no numbers yet");
  }
}

Result<void> write_picture(const std::string& path, std::string_view text) {
  const auto failure = [&](int error) {
    return Error(ErrorCode::kFileIo,
                 "cannot write " + printable(path) + ": " + errno_text(error),
                 "name a file in a folder that you may write to, with --out");
  };
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return failure(errno);
  if (const int error = write_all(fd.get(), text); error != 0) return failure(error);
  return {};
}

std::size_t picture_columns(const PlotArguments& arguments) {
  constexpr std::size_t kUsual = 80;
  if (arguments.width > 0) return arguments.width;
  const std::size_t known = terminal_columns(STDOUT_FILENO);
  return known > 0 ? known : kUsual;
}

std::string picture_for_terminal(const Panels& panels,
                                 const std::vector<std::string>& names,
                                 const PlotArguments& arguments) {
  const EnvMap environment = own_environment();
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  return text_picture(panels,
                      names,
                      {.columns = picture_columns(arguments),
                       .rows = arguments.height,
                       .is_ascii = arguments.is_ascii || !has_utf8_locale(environment),
                       .has_colour = is_terminal && wants_colour(environment)});
}

Result<void> draw(const std::vector<RunLog>& runs, const PlotArguments& arguments) {
  const auto panels =
      panels_of(runs,
                {.metrics = arguments.metrics,
                 .axis = arguments.axis == "time" ? CurveAxis::kTime : CurveAxis::kStep,
                 .smooth = arguments.smooth});
  if (!panels) return panels.error();
  std::vector<std::string> names;
  for (const RunLog& run : runs) names.push_back(run.name);
  if (arguments.out.empty()) {
    std::fputs(picture_for_terminal(*panels, names, arguments).c_str(), stdout);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return Error(ErrorCode::kFileIo, "cannot write the picture to stdout");
    return {};
  }
  if (auto written = write_picture(arguments.out, svg_picture(*panels, names)); !written)
    return written;
  print_notice(kPlot,
               "wrote " + printable(arguments.out) + ": " +
                   counted(panels->panels.size(), "metric") + " of " + counted(runs.size(), "run"));
  return {};
}

}  // namespace

int plot_command(const std::vector<std::string>& words) {
  PlotArguments arguments;
  CommandParser line(kPlot, "Draw the curves of runs, from the files that trackers write.");
  add_plot_options(line.app(), arguments);
  if (const auto status = line.parse(words)) return *status;
  if (arguments.is_json) return print_shown(arguments.runs);
  const auto runs = all_runs(arguments.runs);
  if (!runs) return print_error(kPlot, runs.error());
  tell_of_broken(*runs);
  const auto drawn = draw(*runs, arguments);
  return drawn ? 0 : print_error(kPlot, drawn.error());
}

}  // namespace accel::launcher
