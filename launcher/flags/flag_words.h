// FlagWords: the words of a command line before CLI11 reads them.
//
// CLI11 takes the word behind a flag as its value whatever it is, so that `--log_dir --cpu` would make a folder "--cpu" and train
// on GPUs; and it knows no abbreviations, which argparse allows under torchrun.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "launcher/text/program.h"

namespace accel::launcher {

// The flag's name with underscores: "--fsdp-version=2" gives "fsdp_version".
[[nodiscard]] std::string bare_name(std::string_view word);

// `words` with the flags before the script written out: under accel-torchrun the beginning of one flag of torchrun means it.
// Errors  kUsage: a flag without its value, with another flag in its place; kUnknownFlag: a beginning of several flags.
// What follows a flag that nobody knows is left as it is.
[[nodiscard]] Result<std::vector<std::string>> complete_flags(std::vector<std::string> words,
                                                              Program program);

}  // namespace accel::launcher
