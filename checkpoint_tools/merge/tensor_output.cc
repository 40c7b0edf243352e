#include "checkpoint_tools/merge/tensor_output.h"

#include <algorithm>
#include <utility>

#include <boost/crc.hpp>

#include <accel/result.h>

#include "checkpoint_tools/formats/torch_archive.h"

namespace accel::launcher {

TensorOutput::TensorOutput(checkpoint::FileSystem& file_system,
                           const std::filesystem::path& path,
                           const std::vector<safetensors::TensorSpec>& tensors,
                           WeightsFormat format,
                           const std::map<std::string, std::string>& metadata) {
  // Both formats refuse the same names.
  const auto layout = or_throw(safetensors::plan_layout(tensors, metadata));
  if (format == WeightsFormat::kSafetensors) {
    file_ = std::make_unique<PendingFile>(
        file_system, path, layout.header.data_offset + layout.header.data_bytes);
    for (const safetensors::TensorInfo& tensor : layout.header.tensors)
      places_[tensor.name] = layout.header.data_offset + tensor.begin;
    write(0, layout.bytes);
    return;
  }
  TorchArchive archive = or_throw(plan_torch_archive(tensors, metadata));
  archive_ = std::make_unique<const ZipLayout>(std::move(archive.layout));
  file_ = std::make_unique<PendingFile>(file_system, path, archive_->bytes());
  places_ = std::move(archive.places);
  for (const auto& [entry, bytes] : archive.records) write(archive_->begin_of(entry), bytes);
}

void TensorOutput::write(std::uint64_t offset, const std::string& bytes) {
  file_->write(offset, std::as_bytes(std::span(bytes)));
}

void TensorOutput::write_headers(const ZipLayout& layout) {
  std::vector<std::byte> piece(kPieceBytes);
  std::vector<std::uint32_t> checksums;
  for (std::size_t entry = 0; entry < layout.count(); ++entry) {
    boost::crc_32_type checksum;
    for (std::uint64_t done = 0; done < layout.size_of(entry);) {
      const std::span part = std::span(piece).first(
          std::min<std::uint64_t>(piece.size(), layout.size_of(entry) - done));
      file_->read(layout.begin_of(entry) + done, part);
      checksum.process_bytes(part.data(), part.size());
      done += part.size();
    }
    checksums.push_back(checksum.checksum());
    write(layout.header_of(entry), layout.header(entry, checksums.back()));
  }
  write(layout.tail_begin(), layout.tail(checksums));
}

void TensorOutput::publish() {
  if (archive_) write_headers(*archive_);
  file_->publish();
}

}  // namespace accel::launcher
