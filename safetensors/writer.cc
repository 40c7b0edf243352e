#include <unordered_map>
#include <utility>

#include <accel/safetensors_writer.h>

#include "safetensors/hidden_file.h"
#include "safetensors/shown_text.h"

namespace accel::safetensors {

// Throws Error; Writer returns it.
class Writer::File {
 public:
  File(std::filesystem::path path, Layout layout)
      : header_(std::move(layout.header)),
        file_(std::move(path), header_.data_offset + header_.data_bytes) {
    file_.write_at(0, layout.bytes);
    for (const TensorInfo& info : header_.tensors)
      tensors_.emplace(info.name, Tensor{.info = &info});
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] const Header& header() const noexcept { return header_; }

  void write(std::string_view name, std::span<const std::byte> bytes, std::uint64_t from) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      throw Error(ErrorCode::kSafetensorsMismatch,
                  "the file has no tensor " + shown_name(name),
                  "name it when the writer is created");
    Tensor& tensor = found->second;
    const std::uint64_t all = tensor.info->num_bytes();
    if (from > all || bytes.size() > all - from || bytes.size() > all - tensor.written)
      throw Error(ErrorCode::kInvalidArgument,
                  std::to_string(bytes.size()) + " bytes from byte " + std::to_string(from) +
                      " of tensor " + shown_name(name) + " on are too many: it has " +
                      std::to_string(all) + ", and " + std::to_string(tensor.written) +
                      " are written",
                  "write each byte of a tensor once");
    file_.write_at(header_.data_offset + tensor.info->begin + from, bytes);
    tensor.written += bytes.size();
  }

  void publish() {
    if (file_.is_published())
      throw Error(ErrorCode::kInvalidArgument, "the file is published already", "create another");
    for (const TensorInfo& info : header_.tensors) {
      const Tensor& tensor = tensors_.at(info.name);
      if (tensor.written < info.num_bytes())
        throw Error(ErrorCode::kInvalidArgument,
                    "tensor " + shown_name(info.name) + " has " + std::to_string(info.num_bytes()) +
                        " bytes, but " + std::to_string(tensor.written) + " were written",
                    "write all tensors before publish()");
    }
    file_.publish();
  }

 private:
  struct Tensor {
    const TensorInfo* info = nullptr;
    std::uint64_t written = 0;  // bytes
  };

  Header header_;
  HiddenFile file_;
  std::unordered_map<std::string_view, Tensor> tensors_;
};

Writer::Writer(std::unique_ptr<File> file) : file_(std::move(file)) {}
Writer::Writer(Writer&& other) noexcept = default;
Writer& Writer::operator=(Writer&& other) noexcept = default;
Writer::~Writer() = default;

Result<Writer> Writer::create(const std::filesystem::path& path,
                              std::vector<TensorSpec> tensors,
                              std::map<std::string, std::string> metadata) {
  auto layout = plan_layout(std::move(tensors), std::move(metadata));
  if (!layout) return std::move(layout).error();
  return to_result([&] { return Writer(std::make_unique<File>(path, *std::move(layout))); });
}

const Header& Writer::header() const noexcept {
  return file_->header();
}

Result<void> Writer::write(std::string_view name,
                           std::span<const std::byte> bytes,
                           std::uint64_t from) {
  return to_result([&] { file_->write(name, bytes, from); });
}

Result<void> Writer::publish() {
  return to_result([&] { file_->publish(); });
}

}  // namespace accel::safetensors
