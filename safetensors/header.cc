// Reading, checking and writing the header of a safetensors file.
//
// A file may come from anywhere, so its header is an attack surface: lengths that make a reader
// allocate without bound, shapes whose product wraps around, tensors that share bytes or leave
// bytes unaccounted for, one name with two meanings. The rule here is that a Header exists only
// when all of that has been excluded, so that the code which moves bytes needs no checks of its
// own.
//
// The JSON is taken as a stream of events (SAX) instead of as a tree. The format is four levels
// deep at most, so the builder knows at each event what may come next, refuses everything else at
// once, sees keys that occur twice (a tree would keep the last one silently), and uses no memory
// but the result's.
//
// We are stricter than the reference implementation in three places where it leaves room for two
// readings of one file: keys that occur twice, unknown fields of a tensor and blanks before the
// first brace are errors. Nothing that its writers produce is affected.

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <accel/safetensors.h>

#include "runtime/read_fully.h"
#include "safetensors/shown_text.h"

namespace accel::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's byte order is used as it is");

// Turns the events of the JSON parser into tensors. Every event returns false after fail(), which
// stops the parser.
class HeaderBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<Header> take() {
    if (error_) return std::move(*error_);
    return std::move(header_);
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return unexpected("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected("the number " + text.substr(0, 40));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::kShape) {
      tensor_.shape.push_back(value);
      return true;
    }
    if (where_ == Where::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return unexpected("the number " + std::to_string(value));
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) {
      if (!header_.metadata.try_emplace(key_, std::move(value)).second) {
        return fail("__metadata__ has the key " + shown_name(key_) + " twice");
      }
      return true;
    }
    if (where_ == Where::kTensor && field_ == Field::kDtype) {
      const std::optional<Dtype> dtype = parse_dtype(value);
      if (!dtype) return fail(tensor_text() + " has the unknown dtype " + shown_name(value));
      tensor_.dtype = *dtype;
      return true;
    }
    return unexpected("the string " + shown_name(value));
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kRoot;
      return true;
    }
    if (where_ != Where::kRoot) return unexpected("an object");
    if (key_ == kMetadataKey) {
      if (has_metadata_) return fail("the header has __metadata__ twice");
      has_metadata_ = true;
      where_ = Where::kMetadata;
    } else {
      tensor_ = TensorInfo{.name = key_};
      fields_seen_ = 0;
      num_offsets_ = 0;
      field_ = Field::kNone;
      where_ = Where::kTensor;
    }
    return true;
  }

  bool key(string_t& key) override {
    if (where_ == Where::kTensor) return begin_field(key);
    key_ = std::move(key);
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kTensor && !finish_tensor()) return false;
    where_ = where_ == Where::kRoot ? Where::kEnd : Where::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ == Where::kTensor && field_ == Field::kShape) {
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && field_ == Field::kOffsets) {
      where_ = Where::kOffsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (where_ == Where::kOffsets && num_offsets_ != 2) {
      return fail(tensor_text() + " has " + std::to_string(num_offsets_) +
                  " data_offsets; expected 2");
    }
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::json::exception&) override {
    return fail("the header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Where { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  bool fail(std::string message) {
    if (!error_) error_ = header_error(std::move(message));
    return false;
  }

  [[nodiscard]] std::string tensor_text() const { return "tensor " + shown_name(tensor_.name); }

  bool unexpected(const std::string& found) {
    switch (where_) {
      case Where::kStart:
        return fail("the header is " + found + "; expected a JSON object");
      case Where::kRoot:
        return fail(shown_name(key_) + " is " + found + "; expected an object");
      case Where::kMetadata:
        return fail("__metadata__ " + shown_name(key_) + " is " + found + "; expected a string");
      case Where::kShape:
        return fail(tensor_text() + " has " + found +
                    " in its shape; expected whole numbers from 0");
      case Where::kOffsets:
        return fail(tensor_text() + " has " + found +
                    " in its data_offsets; expected 2 whole numbers from 0");
      case Where::kTensor:
      case Where::kEnd:
        break;
    }
    return fail(tensor_text() + " has " + found + " as its " + std::string(field_name()));
  }

  [[nodiscard]] std::string_view field_name() const {
    switch (field_) {
      case Field::kDtype:
        return "dtype";
      case Field::kShape:
        return "shape";
      case Field::kOffsets:
        return "data_offsets";
      case Field::kNone:
        break;
    }
    return "value";
  }

  bool begin_field(std::string_view name) {
    if (name == "dtype") {
      field_ = Field::kDtype;
    } else if (name == "shape") {
      field_ = Field::kShape;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      return fail(tensor_text() + " has the unknown field " + shown_name(name));
    }
    if ((fields_seen_ & static_cast<unsigned>(field_)) != 0) {
      return fail(tensor_text() + " has the field " + std::string(field_name()) + " twice");
    }
    fields_seen_ |= static_cast<unsigned>(field_);
    return true;
  }

  bool finish_tensor() {
    for (const Field field : {Field::kDtype, Field::kShape, Field::kOffsets}) {
      field_ = field;
      if ((fields_seen_ & static_cast<unsigned>(field)) == 0) {
        return fail(tensor_text() + " has no " + std::string(field_name()));
      }
    }
    const std::string offsets = list_text(std::array{tensor_.begin, tensor_.end});
    if (tensor_.begin > tensor_.end) {
      return fail(tensor_text() + " has data_offsets " + offsets + ", which end before they begin");
    }
    Result<std::uint64_t> bytes = tensor_bytes(tensor_.name, tensor_.dtype, tensor_.shape);
    if (!bytes) {
      error_ = std::move(bytes).error();
      return false;
    }
    if (*bytes != tensor_.num_bytes()) {
      return fail(tensor_text() + " of dtype " + std::string(dtype_name(tensor_.dtype)) +
                  " and shape " + list_text(tensor_.shape) + " needs " + std::to_string(*bytes) +
                  " bytes, but its data_offsets " + offsets + " hold " +
                  std::to_string(tensor_.num_bytes()));
    }
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  Header header_;
  std::optional<Error> error_;
  Where where_ = Where::kStart;
  std::string key_;
  bool has_metadata_ = false;
  TensorInfo tensor_;
  Field field_ = Field::kNone;
  unsigned fields_seen_ = 0;
  unsigned num_offsets_ = 0;
};

// Sorts tensors by offset and makes sure that they cover [0, data_bytes) without overlap or hole.
Result<void> check_coverage(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    const std::string place = "tensor " + shown_name(tensor.name) + " at data_offsets " +
                              list_text(std::array{tensor.begin, tensor.end});
    if (tensor.end > data_bytes) {
      return header_error(place + " ends past the data, which has " + std::to_string(data_bytes) +
                          " bytes");
    }
    if (tensor.begin < covered) {
      return header_error(place + " overlaps tensor " + shown_name(previous->name) + " at " +
                          list_text(std::array{previous->begin, previous->end}));
    }
    if (tensor.begin > covered) {
      return header_error(place + " leaves a hole: bytes " + std::to_string(covered) + " to " +
                          std::to_string(tensor.begin) + " belong to no tensor");
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes) {
    return header_error("the tensors end at byte " + std::to_string(covered) +
                        " of the data, which has " + std::to_string(data_bytes) + " bytes");
  }
  return {};
}

Result<void> read_exactly(int fd, std::span<std::byte> out, std::uint64_t offset) {
  const FullRead read = read_fully(fd, out, offset);
  if (read.error != 0) return Error(ErrorCode::kFileIo, "cannot read: " + errno_text(read.error));
  if (read.bytes < out.size()) return header_error("the file became shorter while it was read");
  return {};
}

}  // namespace

Result<std::uint64_t> header_length(std::span<const std::byte> first_bytes,
                                    std::uint64_t file_bytes) {
  if (file_bytes < kPrefixBytes || first_bytes.size() < kPrefixBytes) {
    return header_error(
        "the file has " + std::to_string(file_bytes) +
        " bytes; a safetensors file starts with the 8 bytes of its header's length");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), kPrefixBytes);
  if (length > kMaxHeaderBytes) {
    return header_error("the header claims " + std::to_string(length) + " bytes; at most " +
                        std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  if (length > file_bytes - kPrefixBytes) {
    return header_error("the header claims " + std::to_string(length) + " bytes, but only " +
                        std::to_string(file_bytes - kPrefixBytes) + " follow in the file");
  }
  return length;
}

Result<Header> parse_header(std::string_view json, std::uint64_t file_bytes) {
  if (json.empty() || json.front() != '{') {
    return header_error("the header does not start with '{'");
  }
  if (file_bytes < kPrefixBytes + json.size()) {
    return header_error("the header ends past the end of the file");
  }
  // The parser takes a NUL as the end of its input, which would let anything follow it.
  if (json.find('\0') != std::string_view::npos) {
    return header_error("the header is not valid JSON at byte " + std::to_string(json.find('\0')));
  }
  HeaderBuilder builder;
  nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  Result<Header> header = builder.take();
  if (!header) return header;

  header->data_offset = kPrefixBytes + json.size();
  header->data_bytes = file_bytes - header->data_offset;
  if (const auto name = repeated_name(header->tensors)) {
    return header_error("tensor " + shown_name(*name) + " occurs twice");
  }
  if (Result<void> covered = check_coverage(header->tensors, header->data_bytes); !covered) {
    return std::move(covered).error();
  }
  return header;
}

Result<Header> read_header(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0)
    return Error(ErrorCode::kFileIo, "cannot stat: " + errno_text(errno));
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  std::array<std::byte, kPrefixBytes> prefix{};
  const size_t prefix_bytes = std::min<std::uint64_t>(kPrefixBytes, file_bytes);
  if (auto read = read_exactly(fd, std::span(prefix).first(prefix_bytes), 0); !read) {
    return std::move(read).error();
  }
  const Result<std::uint64_t> length =
      header_length(std::span(prefix).first(prefix_bytes), file_bytes);
  if (!length) return length.error();
  std::string json(*length, '\0');
  if (auto read = read_exactly(fd, std::as_writable_bytes(std::span(json)), kPrefixBytes); !read) {
    return std::move(read).error();
  }
  return parse_header(json, file_bytes);
}

}  // namespace accel::safetensors
