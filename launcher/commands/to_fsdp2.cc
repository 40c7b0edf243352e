#include "launcher/commands/to_fsdp2.h"

#include <filesystem>
#include <optional>

#include "launcher/commands/fsdp2_conversion.h"
#include "launcher/config/config_writer.h"
#include "launcher/flags/command_parser.h"
#include "runtime/printable.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

struct ConversionArguments {
  std::string config_file;
  std::string output_file;
  bool overwrite = false;
};

// The peer's words, so that scripts which look for them find them.
std::optional<Error> fault_of_files(const ConversionArguments& arguments) {
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  if (!exists(arguments.config_file))
    return Error(ErrorCode::kConfigUnreadable,
                 "Config file " + printable(arguments.config_file) + " not found",
                 "check the path; `accel config` writes a new one");
  if (arguments.overwrite) return std::nullopt;
  if (arguments.output_file.empty())
    return Error(ErrorCode::kUsage,
                 "If --overwrite is not set, --output_file must be provided",
                 "see `accel to-fsdp2 --help`");
  if (exists(arguments.output_file))
    return Error(ErrorCode::kUsage,
                 "Output file " + printable(arguments.output_file) +
                     " already exists and --overwrite is not set",
                 "name another file, or give --overwrite");
  return std::nullopt;
}

Result<void> convert_file(const ConversionArguments& arguments) {
  const std::string& from = arguments.config_file;
  const std::string& to = arguments.output_file.empty() ? from : arguments.output_file;
  const auto text = read_text_file(from, kMostConfigBytes, "the configuration file");
  if (!text) return text.error();
  auto document = parse_config(*text, format_of(from), from);
  if (!document) return std::move(document).error();
  if (document->empty())
    return Error(ErrorCode::kConfigSyntax,
                 "Config file is empty",
                 "name a file that has fsdp_config in it; `accel config` writes one");
  auto converted = convert_to_fsdp2(*std::move(document));
  if (!converted) {
    Error error = std::move(converted).error();
    return std::move(error.while_doing("converting " + printable(from)));
  }
  for (const std::string& notice : converted->notices) print_notice("to-fsdp2", notice);
  return write_config(to, converted->document);
}

}  // namespace

int to_fsdp2_command(const std::vector<std::string>& words) {
  ConversionArguments arguments;
  CommandParser line("to-fsdp2",
                     "Write an FSDP 1 configuration of HF Accelerate as one of FSDP 2.");
  line.app().add_option("--config_file", arguments.config_file, "the file to convert")->required();
  line.app().add_option("--output_file",
                        arguments.output_file,
                        "where to write; with --overwrite alone, the file itself");
  line.app().add_flag("--overwrite", arguments.overwrite, "replace a file that exists");
  if (const auto status = line.parse(words)) return *status;
  if (const auto fault = fault_of_files(arguments)) return print_error("to-fsdp2", *fault);
  const auto converted = convert_file(arguments);
  return converted ? 0 : print_error("to-fsdp2", converted.error());
}

}  // namespace accel::launcher
