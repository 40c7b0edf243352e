// Writer: writes a .safetensors file, which appears in one step when it is complete.
//
//   auto writer = Writer::create("model.safetensors", {{"weight", Dtype::kF32, {2, 3}}}, {{"format", "pt"}});
//   writer->write("weight", std::as_bytes(std::span(values)));
//   writer->publish();
//
// The bytes go into a hidden file beside the final one. publish() makes them durable and renames the file in one step: a reader
// sees the old file or the new one, never a part, even if the program is killed. A Writer that is destroyed without publish()
// removes the hidden file; a process that is killed leaves it (".NAME.<16 digits>.tmp").
//
// The same tensors and metadata always give the same bytes. They are also the bytes of Python's safetensors, except for the order of
// metadata, which is sorted here and arbitrary there.
//
// Threads:  one object, one thread.
// Cost:     space for the whole file is reserved first: a full disk is an error before a byte is written. Each write() is one
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
  // Reserves the file and writes its header. The folder must exist.
  // Errors  kInvalidArgument, kSafetensorsHeader: as plan_layout(); kDiskFull, kFileIo.
  static Result<Writer> create(const std::filesystem::path& path,
                               std::vector<TensorSpec> tensors,
                               std::map<std::string, std::string> metadata = {});

  Writer(Writer&& other) noexcept;
  Writer& operator=(Writer&& other) noexcept;
  ~Writer();

  // Where each tensor goes; in the order of the file, which is the fastest to write in.
  [[nodiscard]] const Header& header() const noexcept;

  // Writes bytes of a tensor, from its byte `from` on: all at once or in pieces, in any order, each byte once.
  // Errors  kInvalidArgument: beyond the end of the tensor, or all its bytes are written; kSafetensorsMismatch: no such tensor; kDiskFull,
  //         kFileIo.
  [[nodiscard]] Result<void> write(std::string_view name,
                                   std::span<const std::byte> bytes,
                                   std::uint64_t from = 0);

  // Gives the file its name. Nothing may be written after it.
  // Errors  kInvalidArgument: a tensor lacks bytes (named); kDiskFull, kFileIo. After an error the file of that name has not changed, unless only the
  //         sync of the folder failed.
  [[nodiscard]] Result<void> publish();

 private:
  class File;
  explicit Writer(std::unique_ptr<File> file);
  std::unique_ptr<File> file_;
};

}  // namespace accel::safetensors
