// TextTokens: files of text that `accel train` is told, as files of tokens, made once and kept.
//
//   tokens_dir/STEM-HASH.npy     HASH: of the text, the tokenizer with the configuration beside it, and the settings, by XXH3
//
// A file that is there is taken as it is: nothing but whole files get such a name. What is missing is made by tokenize_text.py,
// under the user's Python with the library `tokenizers`.
//
// Threads:  any; waits for the script.
// Cost:     one read of each text for its hash; where all files are there, no Python is started.
#pragma once

#include <string>
#include <string_view>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "train/train_settings.h"

namespace accel::launcher {

// Whether a file is of text, by its name: not when it ends as files of tokens do.
[[nodiscard]] bool is_text_name(std::string_view path);

// Sets tokenized_data and tokenized_eval_data: the files of `data` and `eval_data` with those of text replaced. Without a tokenizer
// it does nothing. Errors  kInvalidArgument, kUnsupported, kFileIo, with the remedy; those of run_script().
[[nodiscard]] Result<void> tokenize_texts(train::TrainSettings& settings,
                                          const EnvMap& environment);

}  // namespace accel::launcher
