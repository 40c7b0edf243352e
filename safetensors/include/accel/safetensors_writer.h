// Writer: a .safetensors file that is there at once when it is whole.
//
//   auto writer = Writer::create("model.safetensors", {{"weight", Dtype::kF32, {2, 3}}}, {{"format", "pt"}});
//   writer->write("weight", std::as_bytes(std::span(values)));
//   writer->publish();
//
// The bytes go into a hidden file beside the final one. publish() makes them durable and gives the file its name in one step: who
// reads sees the old file or the new one, never a part, whatever ends the program. A Writer that goes without publish() takes
// the hidden file with it; a process that is killed leaves it (".NAME.<16 digits>.tmp").
//
// The same tensors and metadata always give the same bytes, those of Python's safetensors but for the order of metadata, which is sorted
// here and any there.
//
// Threads:  one object, one thread.
// Cost:     space for the whole file is reserved first: a disk that is too small says so before a byte is written. Each write() is one
//           pwrite(2) from the caller's memory; publish() waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/export.h>
#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::safetensors {

// Writes one file, tensor by tensor.
class ACCEL_EXPORT Writer {
 public:
  // Reserves the file and writes its header. The folder must be there.
  // Errors  kInvalidArgument, kSafetensorsHeader: as plan_layout(); kDiskFull, kFileIo.
  static Result<Writer> create(const std::filesystem::path& path,
                               std::vector<TensorSpec> tensors,
                               std::map<std::string, std::string> metadata = {});

  Writer(Writer&& other) noexcept;
  Writer& operator=(Writer&& other) noexcept;
  ~Writer();

  // Where each tensor goes; in the order of the file, which is the fastest to write in.
  [[nodiscard]] const Header& header() const noexcept;

  // Writes bytes of a tensor from byte `from` of it on: all at once or in pieces, in any order, each byte once.
  // Errors  kInvalidArgument: the tensor has no such bytes, or already has as many; kSafetensorsMismatch: no such tensor; kDiskFull,
  //         kFileIo.
  [[nodiscard]] Result<void> write(std::string_view name,
                                   std::span<const std::byte> bytes,
                                   std::uint64_t from = 0);

  // Gives the file its name. Nothing may be written after it.
  // Errors  kInvalidArgument: a tensor lacks bytes (named); kDiskFull, kFileIo. With an error nothing of that name has changed, unless the folder alone
  //         cannot be synced.
  [[nodiscard]] Result<void> publish();

 private:
  class File;
  explicit Writer(std::unique_ptr<File> file);
  std::unique_ptr<File> file_;
};

}  // namespace accel::safetensors
