#include "launcher/cluster_entry/cluster_library.h"

#include <filesystem>

#include <dlfcn.h>

#include "launcher/system/static_program.h"

namespace accel::launcher {
namespace {

constexpr const char* kLibrary = "libaccel_cluster.so";
constexpr const char* kEntry = "accel_cluster_main";

// Beside the program (a build folder), or in the lib folder beside its own (an installation).
std::vector<std::filesystem::path> candidates() {
  std::error_code failure;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
  const auto folder = self.parent_path();
  return {folder / kLibrary,
          folder.parent_path() / "lib" / kLibrary,
          folder.parent_path() / "lib/accel" / kLibrary};
}

// Errors  kClusterMissing.
Result<void*> find_symbol(const char* name) {
  if (is_static_program()) {
    return Error(
        ErrorCode::kClusterMissing,
        "this accel was installed without its part for agents, elastic jobs (--nnodes "
        "MIN:MAX) and etcd",
        "install the Debian package or build accel (docs/admin/install.md); a job of a fixed "
        "number of nodes needs only "
        "--num_machines, --machine_rank, --main_process_ip and --main_process_port");
  }
  std::string tried;
  for (const auto& path : candidates()) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      tried = reason == nullptr || !std::filesystem::exists(path) ? tried : reason;
      continue;
    }
    if (void* symbol = ::dlsym(library, name); symbol != nullptr) return symbol;
    return Error(ErrorCode::kClusterMissing, path.string() + " has no " + name);
  }
  return Error(ErrorCode::kClusterMissing,
               tried.empty() ? std::string(kLibrary) + " was not found" : tried);
}

template <typename Functions>
Result<const Functions*> load_functions(const char* name) {
  const auto entry = find_symbol(name);
  if (!entry) return entry.error();
  using Entry = const Functions* (*)();
  return reinterpret_cast<Entry>(*entry)();
}

}  // namespace

Result<int> run_cluster_command(const std::vector<std::string>& arguments) {
  const auto entry = find_symbol(kEntry);
  if (!entry) return entry.error();
  std::vector<const char*> argv = {"accel"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  using Entry = int (*)(int, const char* const*);
  return reinterpret_cast<Entry>(*entry)(static_cast<int>(argv.size()), argv.data());
}

Result<const TokenFunctions*> load_token_functions() {
  return load_functions<TokenFunctions>(kTokenEntry);
}

Result<const EtcdFunctions*> load_etcd_functions() {
  return load_functions<EtcdFunctions>(kEtcdEntry);
}

}  // namespace accel::launcher
