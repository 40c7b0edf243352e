// MemoryImage: one rank's part of a checkpoint as one run of bytes, and a source that a load can read.
//
// It is a safetensors file: every tensor, or part of one, is an entry under a number; the metadata hold the texts, and a
// table that says which entry is what. So everything that comes out of memory goes through the checks that a file goes
// through. The first rank of a node has the texts and what is the same on all ranks; the others their parts and their
// random states. To load, a rank needs its own image and the first one's; and those of all ranks of the node for a tensor
// that they have divided and that it wants whole (replica_shares.h).
//
// Threads:  one object, one thread.
// Cost:     the tensors are borrowed, and copied once, into the slot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/safetensors.h>

#include "libaccel/engine/checkpoint/files/checkpoint_source.h"
#include "libaccel/engine/checkpoint/memory/memory_choice.h"
#include "libaccel/engine/checkpoint/memory/memory_slot.h"
#include "libaccel/engine/checkpoint/states/save_content.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {

class MemoryImage {
 public:
  // Errors  throws kUnsupported for a tensor that cannot be saved; kInvalidArgument for a text that is not UTF-8.
  MemoryImage(const SaveContent& content, const Manifest& manifest, const DiskMark& newest_on_disk);

  [[nodiscard]] std::uint64_t bytes() const noexcept;
  void write(SlotWriter& slot) const;

 private:
  safetensors::Layout layout_;
  std::vector<at::Tensor> tensors_;  // by number
};

class MemorySource final : public CheckpointSource {
 public:
  // own, first: images of this rank and of the first of its node, which may be the same. others: of the node's other ranks.
  // All stay borrowed. Errors  kCheckpointIncomplete when one is no image.
  MemorySource(std::span<const std::byte> own,
               std::span<const std::byte> first,
               std::vector<std::span<const std::byte>> others = {});

  [[nodiscard]] const std::filesystem::path& name() const noexcept override { return name_; }
  [[nodiscard]] const Manifest& manifest() const noexcept override { return manifest_; }
  [[nodiscard]] const DiskMark& newest_on_disk() const noexcept { return newest_on_disk_; }
  [[nodiscard]] bool has(const std::string& file) const override;
  [[nodiscard]] std::string text(const std::string& file) override;
  // Errors  kCheckpointMismatch when other parts are wanted than this rank has saved, or a whole that the node lacks parts of.
  [[nodiscard]] LoadedParts parts(const std::string& file,
                                  const PartsWanted& wanted,
                                  LoadedMemory memory) override;

 private:
  struct Part {
    std::uint64_t begin = 0;  // elements from the start of the whole tensor
    std::uint64_t entry = 0;
  };
  struct Divided {
    safetensors::TensorInfo whole;  // without a place
    std::vector<Part> parts;
  };
  struct File {
    std::map<std::string, std::uint64_t> whole;  // tensor -> entry
    std::map<std::string, Divided> divided;
  };
  struct Image {
    std::span<const std::byte> bytes;
    safetensors::Header header;
    std::map<std::uint64_t, const safetensors::TensorInfo*> entries;
    std::map<std::string, File> files;
  };
  [[nodiscard]] static Image parse(std::span<const std::byte> bytes);
  // The values of an entry, copied.
  [[nodiscard]] static at::Tensor values(const Image& image, std::uint64_t entry);
  // All images of the node. The others are parsed when they are first needed.
  [[nodiscard]] std::vector<const Image*> images();
  // A tensor that ranks of the node have divided; undefined unless they have every element once.
  [[nodiscard]] at::Tensor assembled(const std::string& file, const safetensors::TensorInfo& info);

  std::filesystem::path name_ = "the in-memory checkpoint";
  Image own_;
  Image first_;
  std::vector<std::span<const std::byte>> unparsed_;  // of other ranks
  std::vector<Image> others_;
  Manifest manifest_;
  DiskMark newest_on_disk_;
};

}  // namespace accel::checkpoint
