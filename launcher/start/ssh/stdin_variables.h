// StdinVariables: secrets for the launchers on other hosts, sent through ssh's standard input.
//
// What stands in a command line is seen by every user of both machines. So variables whose names tell of a secret are no
// words of the command: they are the first bytes of its input, NAME=VALUE with a NUL byte each, and the variable
// ACCEL_STDIN_VARIABLES of the command says how many bytes those are.
//
// Threads:  one; take_stdin_variables() before there are others (setenv).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

inline constexpr const char* kStdinVariables = "ACCEL_STDIN_VARIABLES";
// A pipe takes so much at once, whoever reads it when.
inline constexpr std::size_t kMostStdinBytes = 32 * 1024;

using Variables = std::vector<std::pair<std::string, std::string>>;

// HF_TOKEN, MYSQL_PASSWORD, AWS_SECRET_ACCESS_KEY, WANDB_API_KEY, ... : also in small letters.
[[nodiscard]] bool is_secret(std::string_view name);

[[nodiscard]] std::string to_stdin_text(const Variables& variables);

// Reads from `fd` what ACCEL_STDIN_VARIABLES announces, puts it into the environment of this process and removes the
// announcement. Nothing is announced: nothing is read. Waits for the bytes.
// Errors  kProtocol: the input ends before them, or they are no variables.
[[nodiscard]] Result<void> take_stdin_variables(int fd);

}  // namespace accel::launcher
