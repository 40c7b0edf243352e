// WeightFile: a weight whose values lie in a file, as a tensor that is read there.
//
// Threads:  any; a tensor is given to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accel::pager {

// Where values lie, in row-major order.
struct FilePlace {
  std::filesystem::path file;
  std::uint64_t offset = 0;
};

// "float32", as numpy and PyTorch call it; std::nullopt: a type that neither numpy has nor Accelerate writes.
[[nodiscard]] std::optional<std::string_view> name_of_dtype(at::ScalarType dtype);
[[nodiscard]] std::optional<at::ScalarType> dtype_of_name(std::string_view name);

// On the mapping of the file, to be read alone; a copy in memory where no processor can read the type at that offset. `name` is
// for the message of a write. Errors  throws kFileIo; kCheckpointIncomplete: the file ends before.
[[nodiscard]] at::Tensor tensor_in_file(const FilePlace& place,
                                        at::ScalarType dtype,
                                        at::IntArrayRef shape,
                                        const std::string& name);

// Of tensor_in_file(), and not copied since.
[[nodiscard]] bool is_in_file(const at::Tensor& tensor);
// Parameters or buffers.
[[nodiscard]] bool has_weights_in_files(const torch::nn::Module& module);

// Whether some weights of the module lie in files and others do not.
[[nodiscard]] bool is_spread(const torch::nn::Module& module);

}  // namespace accel::pager
