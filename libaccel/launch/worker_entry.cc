#include "libaccel/launch/worker_entry.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>

#include <cxxabi.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "libaccel/launch/launch_registry.h"
#include "libaccel/launch/process_role.h"
#include "runtime/unique_fd.h"

namespace accel::launch {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

// The supervisor reads 64 KiB of an error file, and a byte may take six there.
constexpr std::size_t kMostMessageBytes = 10'000;

void write_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const UniqueFd file(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const std::string text = error_file_text(message);
  if (file) (void)!::write(file.get(), text.data(), text.size());
}

void flush_everything() {
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

void end_like_a_return(int status, void*) {
  flush_everything();
  ::_exit(status);
}

int fail(const std::string& message) {
  write_error_file(message);
  const char* rank = std::getenv("RANK");
  std::fprintf(stderr,
               "rank %s ended with an exception: %s\n",
               rank == nullptr ? "?" : rank,
               message.c_str());
  flush_everything();
  return 1;
}

}  // namespace

std::string describe_current_exception() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  const std::string name = type == nullptr ? "an exception" : demangled(type->name());
  try {
    throw;
  } catch (const std::exception& error) {
    const char* what = error.what();
    return what == nullptr ? name : name + ": " + what;
  } catch (const std::string& text) {
    return "std::string: " + text;
  } catch (const char* text) {
    return text == nullptr ? name : name + ": " + text;
  } catch (...) {
    return name;
  }
}

std::string error_file_text(const std::string& message) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::string kept = message.size() <= kMostMessageBytes
                               ? message
                               : message.substr(0, kMostMessageBytes) + " ... (the first " +
                                     std::to_string(kMostMessageBytes) + " of " +
                                     std::to_string(message.size()) + " bytes)";
  const nlohmann::json json = {
      {"message", {{"message", kept}, {"extraInfo", {{"timestamp", std::to_string(seconds)}}}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int run_worker(const std::function<void()>& function) {
  become_worker();
  // What is registered last runs first: exit() does not come to what the program, of which this may be a copy, gave atexit(),
  // nor to its static objects.
  ::on_exit(end_like_a_return, nullptr);
  try {
    function();
  } catch (const abi::__forced_unwind&) {
    // May not be caught for good, and would go on through main(), of which this is a copy.
    ::_exit(
        fail("its thread was ended by pthread_exit() or pthread_cancel(): a rank ends when its "
             "function returns"));
  } catch (...) {
    return fail(describe_current_exception());
  }
  flush_everything();
  return 0;
}

void end_unless_function_runs() {
  const char* name = std::getenv(kFunctionVariable);
  if (name == nullptr) return;
  ::_exit(fail("this worker was executed to run '" + std::string(name) +
               "', and libaccel, which another library brings, cannot keep it from main(): call "
               "accel::init_launcher(argc, argv) first in main(), or link the program itself to "
               "libaccel"));
}

int run_registered(const std::string& name) {
  if (const PlainFunction function = find_function(name)) return run_worker(function);
  std::string known;
  for (const std::string& other : registered_names()) known += (known.empty() ? "" : ", ") + other;
  return fail("no function is registered for launches as '" + name +
              "' (there is: " + (known.empty() ? "none" : known) + ")");
}

}  // namespace accel::launch
