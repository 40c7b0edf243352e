#include "launcher/flags/flag_spelling.h"

#include <cstdio>

#include "launcher/flags/flag_table.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kDashes = "--";
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";
constexpr std::string_view kOfAllMachines = "num_processes";
constexpr std::string_view kFurtherFault = "also";  // faults.h

// The flag's name at the beginning of `text`; empty: there is none.
std::string_view flag_at(std::string_view text) {
  if (!text.starts_with(kDashes)) return {};
  const std::string_view word = text.substr(kDashes.size());
  const std::string_view name = word.substr(0, word.find_first_not_of(kNameCharacters));
  const bool goes_on = name.size() < word.size() && word[name.size()] == '-';
  if (goes_on || name == kOfAllMachines || find_flag(name) == nullptr) return {};
  return name;
}

bool may_begin_word(char before) {
  return std::string_view(" \n`'\"(=").find(before) != std::string_view::npos;
}

}  // namespace

std::string respelled(std::string_view text, Program program) {
  if (program == Program::kLaunch) return std::string(text);
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool begins = i == 0 || may_begin_word(text[i - 1]);
    const std::string_view name = begins ? flag_at(text.substr(i)) : std::string_view();
    if (name.empty()) {
      out += text[i++];
      continue;
    }
    const std::string flag = spelled(name, program);
    out += flag;
    i += kDashes.size() + name.size();
    if (const std::string again = " (" + flag + ")"; text.substr(i).starts_with(again))
      i += again.size();
  }
  return out;
}

std::string rendered(const Error& error, const std::string& program) {
  const Program ours = program_of(program);
  Error out(error.code(), respelled(error.message(), ours), respelled(error.remedy(), ours));
  for (const std::string& step : error.context()) out.while_doing(respelled(step, ours));
  for (const auto& [label, text] : error.details())
    out.with_detail(label, label == kFurtherFault ? respelled(text, ours) : text);
  return out.render(program);
}

int print_failure(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s\n", rendered(error, program).c_str());
  return error_info(error.code()).exit_status;
}

}  // namespace accel::launcher
