// Fuzzes what merge-weights and libaccel read of PyTorch: any bytes give tensors whose promises hold, or an error.
//
// Input that begins as a zip archive does is taken for one of torch.save(), all other for the metadata of
// torch.distributed.checkpoint.

#include <cstdlib>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/box.h"
#include "checkpoint_tools/merge/distcp_metadata.h"

using namespace accel::launcher;

namespace {

// What the merge relies on without checking again.
void check_metadata(std::string_view bytes) {
  const auto metadata = parse_distcp_metadata(bytes);
  if (!metadata) return;
  for (const DistcpTensor& tensor : metadata->tensors) {
    std::uint64_t covered = 0;
    for (const DistcpChunk& chunk : tensor.chunks) {
      const Box box{.offsets = chunk.offsets, .sizes = chunk.sizes};
      if (box.sizes.size() != tensor.shape.size() || !is_within(box, tensor.shape)) std::abort();
      if (chunk.file.find('/') != std::string::npos) std::abort();
      covered += *volume(box.sizes);
    }
    if (covered != *volume(tensor.shape)) std::abort();
  }
}

void check_tensor(const SavedTensor& tensor, std::size_t file_bytes) {
  if (tensor.storage.begin + tensor.storage.size > file_bytes) std::abort();
  if (tensor.shape.size() != tensor.strides.size()) std::abort();
  std::uint64_t last = tensor.first;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return;
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  const std::uint64_t width = accel::safetensors::dtype_bits(tensor.dtype) / 8;
  if (tensor.storage.size / width <= last) std::abort();
}

// One tensor, as a checkpoint in parts has it, and a dict, as load_checkpoint_in_model() reads it: values that are none are asked
// for as well.
void check_archive(std::string_view bytes) {
  static const int file = ::memfd_create("archive", 0);
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  const FileSlice slice{.fd = file, .path = "archive", .begin = 0, .size = bytes.size()};
  if (const auto tensor = read_saved_tensor(slice)) check_tensor(*tensor, bytes.size());
  const auto opened = TorchFile::open(slice);
  if (!opened) return;
  const Pickle& pickle = opened->pickle();
  const auto entries = pickle.entries(pickle.root());
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    const PickleNode node = (*entries)[i];
    const auto tensor = opened->tensor(node);
    if (tensor && !opened->is_tensor(node)) std::abort();
    if (tensor) check_tensor(*tensor, bytes.size());
    (void)pickle.real(node);
    (void)pickle.boolean(node);
    (void)pickle.text(node);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with("PK")) {
    check_archive(bytes);
  } else {
    check_metadata(bytes);
  }
  return 0;
}
