// ShellWord: a word as /bin/sh takes it back, byte for byte.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

// `word` itself when nothing in it means anything to a shell, else in single quotes. A word with a
// byte of 0 cannot be said in a shell.
[[nodiscard]] std::string shell_word(std::string_view word);

// The words with a blank between them.
[[nodiscard]] std::string shell_words(const std::vector<std::string>& words);

}  // namespace accel::launcher
