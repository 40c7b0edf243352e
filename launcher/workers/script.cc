#include "launcher/workers/script.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "runtime/suggest.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_executable(const fs::path& path) {
  return access(path.c_str(), X_OK) == 0;
}

// The entries of the script's folder, as they would be typed.
std::vector<std::string> names_beside(const std::string& script) {
  const fs::path folder = fs::path(script).parent_path();
  std::vector<std::string> names;
  std::error_code failure;
  constexpr size_t kMostNames = 10'000;
  for (fs::directory_iterator entry(folder.empty() ? fs::path(".") : folder, failure), end;
       !failure && entry != end && names.size() < kMostNames;
       entry.increment(failure)) {
    names.push_back((folder / entry->path().filename()).string());
  }
  return names;
}

Error missing_script(const std::string& script, const EnvMap& environment, Program program) {
  const std::string remedy =
      "check the path; a program on PATH is found with " + spelled("no_python", program);
  const fs::path folder = fs::path(script).parent_path();
  if (!folder.empty() && !is_folder(folder)) {
    return Error(ErrorCode::kScriptMissing,
                 "there is no " + script + ": the folder " + folder.string() + " does not exist",
                 remedy);
  }
  if (folder.empty() && !find_on_path(script, environment).empty()) {
    return Error(
        ErrorCode::kScriptMissing,
        "there is no " + script + " in this folder; one is on PATH",
        std::string(name_of(program)) + " " + spelled("no_python", program) + " " + script);
  }
  if (std::optional<std::string> guess = nearest(script, names_beside(script))) {
    return Error(ErrorCode::kScriptMissing,
                 "there is no " + script + ", did you mean " + *guess + "?",
                 "check the path; " + *guess + " exists");
  }
  return Error(ErrorCode::kScriptMissing, "there is no " + script, remedy);
}

Result<WorkerCommand> with_python(std::vector<std::string> tail,
                                  std::string name,
                                  const EnvMap& environment) {
  Result<std::string> python = find_python(environment);
  if (!python) return std::move(python).error();
  WorkerCommand command;
  command.argv = {*std::move(python), "-u"};
  command.argv.insert(command.argv.end(), tail.begin(), tail.end());
  command.is_python = true;
  command.name = std::move(name);
  return command;
}

// A shell would not find "train" in this folder, but the user named the file, so "./train" is run.
std::string as_path(const std::string& script) {
  return script.find('/') == std::string::npos ? "./" + script : script;
}

// As much as the kernel reads of a #! line.
std::string head_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string head(256, '\0');
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(stream.gcount()));
  return head;
}

// Of the first bytes of a file. Form feeds and escapes stand in scripts too.
bool is_text(const std::string& head) {
  const auto is_odd = [](unsigned char c) {
    return (c < 0x20 && (c < '\t' || c > '\r') && c != 0x1b) || c == 0x7f;
  };
  return !head.empty() && std::none_of(head.begin(), head.end(), is_odd);
}

std::string first_line(const std::string& path) {
  const std::string head = head_of(path);
  return head.substr(0, head.find('\n'));
}

// "/usr/bin/env" of "#!/usr/bin/env python3".
std::string interpreter_of(std::string_view line) {
  line.remove_prefix(2);
  const size_t start = std::min(line.find_first_not_of(" \t"), line.size());
  line.remove_prefix(start);
  return std::string(line.substr(0, line.find_first_of(" \t\r")));
}

Result<WorkerCommand> program_command(const std::string& path,
                                      const std::vector<std::string>& arguments) {
  std::error_code ignored;
  if (fs::file_size(path, ignored) == 0) {
    return Error(ErrorCode::kScriptNotExecutable, path + " is an empty file", "check the path");
  }
  if (!is_executable(path)) {
    return Error(ErrorCode::kScriptNotExecutable,
                 path + " has no permission to be executed",
                 "chmod +x " + path);
  }
  const std::string line = first_line(path);
  if (line.starts_with("#!")) {
    const std::string interpreter = interpreter_of(line);
    if (!is_executable(interpreter)) {
      return Error(ErrorCode::kExecFailed,
                   path + " wants to be run by '" + interpreter + "', which cannot be executed",
                   "correct the first line of " + path + ", or install " + interpreter);
    }
  }
  if (!line.starts_with("#!") && is_text(head_of(path))) {
    return Error(ErrorCode::kExecFailed,
                 path + " is a text whose first line does not say what runs it",
                 "begin it with a line like #!/bin/sh");
  }
  WorkerCommand command;
  command.argv = {path};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.name = fs::path(path).filename().string();
  return command;
}

// By its name, or because it is a text that names no other interpreter: the peers run whatever they are given with Python.
// There are file systems on which every file may be executed.
bool is_python_file(const std::string& script) {
  for (const std::string_view suffix : {".py", ".pyw", ".pyc", ".pyz"})
    if (script.ends_with(suffix)) return true;
  for (const std::string_view suffix : {".sh", ".bash", ".json", ".yaml", ".yml", ".toml"})
    if (script.ends_with(suffix)) return false;
  if (!is_file(script)) return false;
  const std::string head = head_of(script);
  if (!is_text(head) || !head.starts_with("#!")) return is_text(head);
  return !is_executable(script) &&
         head.substr(0, head.find('\n')).find("python") != std::string::npos;
}

Result<WorkerCommand> file_command(const std::string& script,
                                   const std::vector<std::string>& arguments,
                                   const EnvMap& environment,
                                   Program program) {
  const bool is_package = is_folder(script) && is_file(fs::path(script) / "__main__.py");
  if (is_folder(script) && !is_package) {
    return Error(ErrorCode::kScriptNotExecutable,
                 script + " is a folder without __main__.py",
                 "name the script inside it");
  }
  std::error_code ignored;
  if (script == "-" || script == "/dev/stdin") {
    return Error(
        ErrorCode::kScriptMissing,
        "a script cannot be read from the standard input",
        "write it to a file: each worker, and each one that is started again, reads it anew");
  }
  if (!fs::exists(script, ignored)) return missing_script(script, environment, program);
  if (is_package || is_python_file(script)) {
    std::vector<std::string> tail = {script};
    tail.insert(tail.end(), arguments.begin(), arguments.end());
    return with_python(std::move(tail), fs::path(script).stem().string(), environment);
  }
  if (!is_file(script)) {
    return Error(
        ErrorCode::kScriptNotExecutable, script + " is not a regular file", "check the path");
  }
  return program_command(as_path(script), arguments);
}

Result<WorkerCommand> run_path_command(const std::string& script,
                                       const std::vector<std::string>& arguments,
                                       const EnvMap& environment,
                                       Program program) {
  constexpr const char* kProgram =
      "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
      "run_name='__main__')";
  std::error_code ignored;
  if (!fs::exists(script, ignored)) return missing_script(script, environment, program);
  std::vector<std::string> tail = {"-c", kProgram, script};
  tail.insert(tail.end(), arguments.begin(), arguments.end());
  return with_python(std::move(tail), fs::path(script).stem().string(), environment);
}

}  // namespace

Result<WorkerCommand> resolve_command(const std::string& script,
                                      const std::vector<std::string>& arguments,
                                      ScriptKind kind,
                                      const EnvMap& environment,
                                      Program program) {
  if (script.empty()) {
    const std::string name(name_of(program));
    return Error(ErrorCode::kUsage,
                 "no script or program is given",
                 name + " [flags] SCRIPT [arguments], see `" + name + " --help`");
  }
  if (kind == ScriptKind::kRunPath)
    return run_path_command(script, arguments, environment, program);
  if (kind == ScriptKind::kFile) return file_command(script, arguments, environment, program);
  if (kind == ScriptKind::kModule) {
    std::vector<std::string> tail = {"-m", script};
    tail.insert(tail.end(), arguments.begin(), arguments.end());
    return with_python(std::move(tail), script.substr(script.rfind('.') + 1), environment);
  }
  if (script.find('/') != std::string::npos) {
    if (is_folder(script)) {
      return Error(
          ErrorCode::kScriptNotExecutable, script + " is a folder", "name the program inside it");
    }
    if (!is_file(script)) return missing_script(script, environment, program);
    return program_command(script, arguments);
  }
  const std::string found = find_on_path(script, environment);
  if (!found.empty()) return program_command(found, arguments);
  return Error(ErrorCode::kScriptMissing,
               "there is no program " + script + " on PATH",
               is_file(script) ? "a file of this folder needs its path: ./" + script
                               : "check the name, or give the whole path");
}

}  // namespace accel::launcher
