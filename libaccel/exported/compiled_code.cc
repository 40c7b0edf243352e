#include "libaccel/exported/compiled_code.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>
#include <sys/utsname.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/exported/shared_library.h"
#include "libaccel/interception/own_operator.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

using torch::inductor::AOTIModelContainerRunner;

// The runner's address stands for it in the operator's arguments.
std::vector<at::Tensor> run_compiled(std::int64_t runner,
                                     at::TensorList read,
                                     at::TensorList written,
                                     at::IntArrayRef order) {
  std::vector<at::Tensor> inputs(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    inputs[static_cast<std::size_t>(order[i])] =
        i < read.size() ? read[i] : written[i - read.size()];
  return reinterpret_cast<AOTIModelContainerRunner*>(runner)->boxed_run(std::move(inputs));
}

const c10::OperatorHandle& run_operator() {
  static const c10::OperatorHandle handle = interception::define_operator(
      "run_compiled(int runner, Tensor[] read, Tensor(a!)[] written, int[] order) -> Tensor[]",
      &run_compiled);
  return handle;
}

// In a program that has linked LibTorch its symbols are for all; in one that has opened a library with it they may not be.
void show_libtorch() {
  ::Dl_info where{};
  if (::dladdr(reinterpret_cast<void*>(&torch::inductor::getAOTIModelRunnerRegistry), &where) != 0)
    ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);  // for good
}

std::string cpuinfo_text() {
  std::ifstream file("/proc/cpuinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

MachineFeatures this_machine() {
  struct ::utsname names {};
  ::uname(&names);
  return {.system = "linux",
          .architecture = names.machine,
          .cpu = cpu_features(cpuinfo_text()),
          .torch = TORCH_VERSION};
}

class CompiledCode::Folder {
 public:
  Folder() {
    const char* const given = std::getenv("TMPDIR");
    std::string name =
        std::string(given != nullptr && *given != '\0' ? given : "/tmp") + "/accel-compiled-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)  // for this user alone
      throw Error(ErrorCode::kFileIo,
                  "cannot make the folder " + printable(name) + ": " + errno_text(errno),
                  "name a folder that can be written in TMPDIR");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

CompiledCode::CompiledCode(const CompiledPackage& package, const std::string& source)
    : device_(package.device()) {
  const std::string fault = package.fault_on(this_machine());
  if (!fault.empty())
    throw Error(ErrorCode::kUnsupported,
                "the compiled code of " + printable(source) + " cannot be run: " + fault,
                "compile it on a machine like this one: accel export --compile");
  folder_ = std::make_unique<Folder>();
  load(package.unpack(folder_->path()), source);
  if (device_ == "cpu") folder_.reset();
}

void CompiledCode::load(const std::filesystem::path& library, const std::string& source) {
  const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
  const auto maker = makers.find(device_);
  if (maker == makers.end())
    throw Error(ErrorCode::kUnsupported,
                "the compiled code of " + printable(source) + " is for the device " +
                    printable(device_) + ", which this LibTorch does not know",
                "compile it for cpu, or use a LibTorch with that device");
  if (!is_whole_library(library))
    throw Error(ErrorCode::kCheckpointIncomplete,
                "the compiled code of " + printable(source) + " is no whole shared library",
                "copy the file again, or export the model again");
  show_libtorch();
  if (device_ == "cpu") need_instead(library, "libtorch.so", "libtorch_cpu.so");
  try {
    runner_ = maker->second(library.string(), 1, device_, library.parent_path().string(), false);
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    throw Error(ErrorCode::kUnsupported,
                "the compiled code of " + printable(source) +
                    " cannot be loaded: " + printable(std::string(what.substr(0, what.find('\n')))),
                "compile it with the torch of this LibTorch (" TORCH_VERSION
                "); where /tmp may hold no programs, name another folder in TMPDIR");
  }
}

CompiledCode::~CompiledCode() = default;

std::vector<at::Tensor> CompiledCode::run(std::vector<at::Tensor> read,
                                          std::vector<at::Tensor> written,
                                          const std::vector<std::int64_t>& order) const {
  // The code derives nothing.
  const at::AutoDispatchBelowADInplaceOrView guard;
  static const auto call =
      run_operator()
          .typed<std::vector<at::Tensor>(
              std::int64_t, at::TensorList, at::TensorList, at::IntArrayRef)>();
  return call.call(reinterpret_cast<std::int64_t>(runner_.get()), read, written, order);
}

std::vector<std::string> CompiledCode::missing_constants() const {
  const auto values = runner_->extract_constants_map(/*use_inactive=*/false);
  std::vector<std::string> missing;
  for (const auto& [internal, name] : runner_->getConstantNamesToOriginalFQNs())
    if (!values.contains(name)) missing.push_back(name);
  std::ranges::sort(missing);
  return missing;
}

void CompiledCode::use_constants(const std::map<std::string, at::Tensor>& constants) {
  for (const auto& [internal, name] : runner_->getConstantNamesToOriginalFQNs())
    if (const auto found = constants.find(name); found != constants.end())
      constants_.emplace(internal, found->second);
  runner_->update_constant_buffer(
      constants_, /*use_inactive=*/false, /*validate_full_updates=*/false, /*user_managed=*/true);
}

std::string CompiledCode::outputs_tree() const {
  const std::vector<std::string> specs = runner_->get_call_spec();
  return specs.size() < 2 ? "" : specs[1];
}

}  // namespace accel::exported
