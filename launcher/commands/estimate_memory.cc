#include "launcher/commands/estimate_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "checkpoint_tools/models/model_files.h"
#include "launcher/flags/command_parser.h"
#include "launcher/system/own_environment.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

using Row = std::array<std::string, 4>;

std::string repeated(std::string_view text, std::size_t times) {
  std::string result;
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

// Of UTF-8: every byte but those that go on with a letter begins one.
std::size_t num_letters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char byte) { return (byte & 0xC0) != 0x80; }));
}

std::string centred(const std::string& text, std::size_t width) {
  const std::size_t space = width - std::min(width, num_letters(text));
  const std::size_t left = space / 2 + (space & width & 1);  // as Python does
  return std::string(left, ' ') + text + std::string(space - left, ' ');
}

std::string border(const std::array<std::size_t, 4>& widths,
                   std::string_view left,
                   std::string_view middle,
                   std::string_view right) {
  std::string line(left);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) line += middle;
    line += repeated("\u2500", widths[i]);
  }
  return line + std::string(right) + "\n";
}

std::string row_of(const Row& cells, const std::array<std::size_t, 4>& widths) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += "\u2502" + centred(cells[i], widths[i]);
  return line + "\u2502\n";
}

std::string to_json(const ModelInventory& model, const std::vector<MemoryRow>& rows) {
  nlohmann::ordered_json document = {{"model", model.name},
                                     {"source", model.source},
                                     {"parameters", num_parameters(model)},
                                     {"dtypes", nlohmann::ordered_json::array()}};
  for (const MemoryRow& row : rows) {
    nlohmann::ordered_json entry = {{"dtype", row.dtype},
                                    {"largest_layer_bytes", std::llround(row.largest_layer)},
                                    {"total_bytes", std::llround(row.total)},
                                    {"training_bytes", nullptr}};
    if (row.training) entry["training_bytes"] = std::llround(*row.training);
    document["dtypes"].push_back(std::move(entry));
  }
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

struct EstimateArguments {
  std::string model;
  std::string library;
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  bool trust_remote_code = false;
  bool json = false;
};

void add_estimate_options(CLI::App& app, EstimateArguments& arguments) {
  const auto dtype = [](const std::string& word) -> std::string {
    if (is_estimated_dtype(word)) return "";
    return word + " is not one of float32, float16, bfloat16, int8, int4";
  };
  app.add_option("model_name",
                 arguments.model,
                 "safetensors file, index, folder, config.json,\n"
                 "or a model's name in the local Hub cache")
      ->required();
  app.add_option("--dtypes",
                 arguments.dtypes,
                 "which rows the table has, of float32, float16, bfloat16, int8 and int4")
      ->check(dtype);
  app.add_option("--library_name", arguments.library, "timm or transformers; changes nothing here")
      ->check(CLI::IsMember({"timm", "transformers"}));
  app.add_flag("--trust_remote_code",
               arguments.trust_remote_code,
               "changes nothing: no code of a model is run");
  app.add_flag("--json", arguments.json, "JSON, in bytes");
}

}  // namespace

std::string render_table(const ModelInventory& model, const std::vector<MemoryRow>& rows) {
  const std::string title = "Memory Usage for loading `" + printable(model.name) + "`";
  std::vector<Row> cells = {{"dtype", "Largest Layer", "Total Size", "Training using Adam"}};
  for (const MemoryRow& row : rows)
    cells.push_back({std::string(row.dtype),
                     readable_bytes(row.largest_layer),
                     readable_bytes(row.total),
                     row.training ? readable_bytes(*row.training) : "N/A"});
  std::array<std::size_t, 4> widths{};
  for (const Row& row : cells)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::size_t inside = widths.size() - 1;
  for (const std::size_t width : widths) inside += width;
  if (const std::size_t letters = num_letters(title); letters > inside) {
    widths.back() += letters - inside;
    inside = letters;
  }
  std::string table = border(widths, "\u250c", "\u2500", "\u2510") + "\u2502" +
                      centred(title, inside) + "\u2502\n" +
                      border(widths, "\u251c", "\u252c", "\u2524") + row_of(cells.front(), widths) +
                      border(widths, "\u251c", "\u253c", "\u2524");
  for (std::size_t i = 1; i < cells.size(); ++i) table += row_of(cells[i], widths);
  return table + border(widths, "\u2514", "\u2534", "\u2518");
}

int estimate_memory_command(const std::vector<std::string>& words) {
  EstimateArguments arguments;
  CommandParser line("estimate-memory",
                     "What a model takes to load and to train, from its tensors.");
  add_estimate_options(line.app(), arguments);
  if (const auto status = line.parse(words)) return *status;
  if (!arguments.library.empty())
    print_notice("estimate-memory",
                 "--library_name changes nothing: sizes come from the model's files");
  if (arguments.trust_remote_code)
    print_notice("estimate-memory",
                 "--trust_remote_code changes nothing: no code of a model is run");
  const auto model = find_model(arguments.model, own_environment());
  if (!model) return print_error("estimate-memory", model.error());
  const auto rows = estimate_memory(*model, arguments.dtypes);
  const std::string text = arguments.json ? to_json(*model, rows) : render_table(*model, rows);
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return 0;
  return print_error("estimate-memory", Error(ErrorCode::kFileIo, "the table cannot be written"));
}

}  // namespace accel::launcher
