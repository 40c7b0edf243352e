// PythonFile: a file of torch.save(), as values and tensors of LibTorch.
//
// Nothing of it is run: what the pickle names must be on a list, and is never called. Tensors of one storage share their memory, as
// in Python. Values that refer to each other are converted once, so that a small file cannot become a large value.
//
// Threads:  one at a time.
// Cost:     opening reads the pickle; a storage is read once, when the first of its tensors is asked for.
// Errors    throws kCheckpointIncomplete (damage), kUnsupported (what the pickle names; a dtype), kFileIo; all name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <accel/safetensors_file.h>

#include "checkpoint_tools/formats/torch_file.h"
#include "runtime/checkpoint/hashed_file.h"

namespace c10 {
struct IValue;
}

namespace accel::checkpoint {

// By its name (.safetensors; .bin, .pt, .pth, .pkl, .ckpt), or else by what it begins with.
[[nodiscard]] bool is_python_file(const std::filesystem::path& path);

class PythonFile {
 public:
  // `more_names`: what the pickle may name beside what tensors need, as "module name".
  explicit PythonFile(const std::filesystem::path& path,
                      std::span<const std::string_view> more_names = {});
  PythonFile(const PythonFile&) = delete;  // the archive borrows the path
  PythonFile& operator=(const PythonFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const launcher::Pickle& pickle() const noexcept { return file_.pickle(); }
  [[nodiscard]] bool is_tensor(launcher::PickleNode node) const { return file_.is_tensor(node); }

  enum class Values { kRead, kNone };  // kNone: on the meta device, with their shapes alone
  [[nodiscard]] at::Tensor tensor(launcher::PickleNode node, Values values = Values::kRead);
  // std::nullopt: it holds an object of a class of Python, or contains itself.
  [[nodiscard]] std::optional<c10::IValue> value(launcher::PickleNode node);
  // The tensors of a dict from names to tensors. Throws kCheckpointMismatch for anything else.
  [[nodiscard]] safetensors::TensorMap tensors(Values values = Values::kRead);

 private:
  class Conversion;

  std::filesystem::path path_;
  std::string name_;  // of the path, which slices borrow
  InputFile input_;
  launcher::TorchFile file_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, at::Tensor> storages_;  // by place and size
};

}  // namespace accel::checkpoint
