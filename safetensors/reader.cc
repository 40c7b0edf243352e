#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/safetensors_reader.h>

#include "runtime/printable.h"
#include "runtime/read_fully.h"
#include "runtime/unique_fd.h"
#include "safetensors/shown_text.h"

namespace accel::safetensors {
namespace {

Error reading_failed(const std::filesystem::path& path, const std::string& why) {
  return Error(ErrorCode::kFileIo, "cannot read " + printable(path.string()) + ": " + why);
}

}  // namespace

Mapping::Mapping(const std::byte* file, std::size_t file_bytes, std::uint64_t data_offset) noexcept
    : file_(file), file_bytes_(file_bytes), data_offset_(data_offset) {}

Mapping::Mapping(Mapping&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      file_bytes_(other.file_bytes_),
      data_offset_(other.data_offset_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(file_bytes_, other.file_bytes_);
  std::swap(data_offset_, other.data_offset_);
  return *this;
}

Mapping::~Mapping() {
  if (file_ != nullptr) ::munmap(const_cast<std::byte*>(file_), file_bytes_);
}

std::span<const std::byte> Mapping::bytes(const TensorInfo& tensor) const noexcept {
  return {file_ + data_offset_ + tensor.begin, tensor.num_bytes()};
}

Result<Reader> Reader::open(const std::filesystem::path& path) {
  // A pipe is opened without waiting for its writer, and then refused.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return reading_failed(path, errno_text(errno));
  if (!S_ISREG(status.st_mode)) return reading_failed(path, "it is no file");
  Result<Header> header = read_header(fd.get());
  if (!header) {
    Error error = std::move(header).error();
    return std::move(error.while_doing("reading the header of " + printable(path.string())));
  }
  return Reader(path, fd.release(), *std::move(header));
}

Reader::Reader(std::filesystem::path path, int fd, Header header)
    : path_(std::move(path)), fd_(fd), header_(std::move(header)) {
  by_name_.reserve(header_.tensors.size());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i)
    by_name_.emplace(header_.tensors[i].name, i);
}

// The names stay where they are when the vector moves.
Reader::Reader(Reader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      header_(std::move(other.header_)),
      by_name_(std::move(other.by_name_)) {}

Reader& Reader::operator=(Reader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(header_, other.header_);
  std::swap(by_name_, other.by_name_);
  return *this;
}

Reader::~Reader() {
  UniqueFd closing(fd_);
}

Result<const TensorInfo*> Reader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return &header_.tensors[found->second];
  return Error(ErrorCode::kSafetensorsMismatch,
               printable(path_.string()) + " has no tensor " + shown_name(name),
               "list the tensors of its header: names are compared to the letter");
}

Result<void> Reader::read(std::string_view name, std::span<std::byte> out) const {
  const auto tensor = find(name);
  if (!tensor) return tensor.error();
  if ((*tensor)->num_bytes() == out.size()) return read_range(name, 0, out);
  return Error(ErrorCode::kInvalidArgument,
               "tensor " + shown_name(name) + " has " + std::to_string((*tensor)->num_bytes()) +
                   " bytes, but there is memory for " + std::to_string(out.size()),
               "give as many bytes as its num_bytes() says, or read a range");
}

Result<void> Reader::read_range(std::string_view name,
                                std::uint64_t from,
                                std::span<std::byte> out) const {
  const auto found = find(name);
  if (!found) return found.error();
  const TensorInfo& tensor = **found;
  if (from > tensor.num_bytes() || out.size() > tensor.num_bytes() - from)
    return Error(ErrorCode::kInvalidArgument,
                 "tensor " + shown_name(name) + " has no " + std::to_string(out.size()) +
                     " bytes from byte " + std::to_string(from) + " on: it has " +
                     std::to_string(tensor.num_bytes()),
                 "ask for bytes that it has");
  const FullRead read = read_fully(fd_, out, header_.data_offset + tensor.begin + from);
  if (read.error != 0) return reading_failed(path_, errno_text(read.error));
  if (read.bytes < out.size()) return reading_failed(path_, "it became shorter while it was read");
  return {};
}

Result<Mapping> Reader::map() const {
  const std::size_t bytes = header_.data_offset + header_.data_bytes;
  void* const file = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0);
  if (file == MAP_FAILED) return reading_failed(path_, "mmap: " + errno_text(errno));
  return Mapping(static_cast<const std::byte*>(file), bytes, header_.data_offset);
}

}  // namespace accel::safetensors
