#include "runtime/supervisor/store/store_protocol.h"

#include <array>
#include <bit>
#include <cstring>

// A request is its code and a list of fields; a counted one is a count and then a group of fields
// for each key. So one table drives the reading of all of them. The parser remembers how many
// fields of the current request it has seen and where each began: bytes are looked at once, however
// small the pieces are in which they arrive, and a field is stored as an extent because the buffer
// moves while it grows.

namespace accel::supervisor {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and numbers are copied as they are");

namespace {

constexpr std::size_t kKeptCapacity = 4 << 10;  // what an idle connection may go on holding

constexpr std::array<std::string_view, kNumStoreCommands> kNames = {"VALIDATE",
                                                                    "SET",
                                                                    "COMPARE_SET",
                                                                    "GET",
                                                                    "ADD",
                                                                    "CHECK",
                                                                    "WAIT",
                                                                    "GETNUMKEYS",
                                                                    "DELETE_KEY",
                                                                    "APPEND",
                                                                    "MULTI_GET",
                                                                    "MULTI_SET",
                                                                    "CANCEL_WAIT",
                                                                    "PING",
                                                                    "QUEUE_PUSH",
                                                                    "QUEUE_POP",
                                                                    "QUEUE_LEN",
                                                                    "LIST_KEYS"};

Error violation(StoreCommand command, const std::string& what) {
  return {ErrorCode::kProtocol, std::string(to_string(command)) + ": " + what};
}

Error over_limit(StoreCommand command, const char* what, std::uint64_t value, std::size_t limit) {
  return {ErrorCode::kStoreLimit,
          std::string(to_string(command)) + ": " + what + " of " + std::to_string(value) +
              " (limit " + std::to_string(limit) + ")"};
}

template <typename T>
void append_number(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

}  // namespace

struct StoreRequestParser::Shape {
  // After a leading kCount the other fields repeat.
  std::array<Field, 3> fields;

  [[nodiscard]] bool is_counted() const noexcept { return fields[0] == Field::kCount; }
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t n = 0;
    while (n < fields.size() && fields[n] != Field::kNone) ++n;
    return n;
  }
  [[nodiscard]] Field at(std::size_t index) const noexcept {
    if (!is_counted() || index == 0) return fields[index];
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a count is followed by what it counts
    return fields[1 + (index - 1) % (size() - 1)];
  }
};

const StoreRequestParser::Shape& StoreRequestParser::shape_of(StoreCommand command) noexcept {
  using F = Field;
  static constexpr std::array<Shape, kNumStoreCommands> kShapes = {{
      {{F::kNumber, F::kNone, F::kNone}},  // VALIDATE
      {{F::kKey, F::kValue, F::kNone}},    // SET
      {{F::kKey, F::kValue, F::kValue}},   // COMPARE_SET
      {{F::kKey, F::kNone, F::kNone}},     // GET
      {{F::kKey, F::kDelta, F::kNone}},    // ADD
      {{F::kCount, F::kKey, F::kNone}},    // CHECK
      {{F::kCount, F::kKey, F::kNone}},    // WAIT
      {{F::kNone, F::kNone, F::kNone}},    // GETNUMKEYS
      {{F::kKey, F::kNone, F::kNone}},     // DELETE_KEY
      {{F::kKey, F::kValue, F::kNone}},    // APPEND
      {{F::kCount, F::kKey, F::kNone}},    // MULTI_GET
      {{F::kCount, F::kKey, F::kValue}},   // MULTI_SET
      {{F::kNone, F::kNone, F::kNone}},    // CANCEL_WAIT
      {{F::kNumber, F::kNone, F::kNone}},  // PING
      {{F::kKey, F::kValue, F::kNone}},    // QUEUE_PUSH
      {{F::kKey, F::kNone, F::kNone}},     // QUEUE_POP
      {{F::kKey, F::kNone, F::kNone}},     // QUEUE_LEN
      {{F::kNone, F::kNone, F::kNone}},    // LIST_KEYS
  }};
  return kShapes[static_cast<std::size_t>(command)];
}

std::string_view to_string(StoreCommand command) noexcept {
  return kNames[static_cast<std::size_t>(command)];
}

void StoreRequestParser::feed(std::string_view bytes) {
  if (start_ > 0) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_.append(bytes);
}

Result<const StoreRequest*> StoreRequestParser::next() {
  constexpr const StoreRequest* kNeedMore = nullptr;
  if (scanned_ == 0) {
    Result<bool> code = read_code();
    if (!code) return std::move(code).error();
    if (!*code) return kNeedMore;
  }
  const Shape& shape = shape_of(request_.command);
  while (fields_done_ < fields_total_) {
    Result<bool> field = read_field(shape.at(fields_done_));
    if (!field) return std::move(field).error();
    if (!*field) return kNeedMore;
    ++fields_done_;
  }
  if (Result<void> done = finish(); !done) return std::move(done).error();
  return &request_;
}

Result<bool> StoreRequestParser::read_code() {
  if (pending_bytes() == 0) {
    release_memory();
    return false;
  }
  const auto code = static_cast<std::uint8_t>(buffer_[start_]);
  if (code >= kNumStoreCommands) {
    return Error(ErrorCode::kProtocol, "unknown request code " + std::to_string(code));
  }
  request_.command = static_cast<StoreCommand>(code);
  if (validated_ == (request_.command == StoreCommand::kValidate)) {
    return violation(request_.command, validated_ ? "sent again" : "sent before VALIDATE");
  }
  keys_.clear();
  values_.clear();
  scanned_ = 1;
  fields_done_ = 0;
  const Shape& shape = shape_of(request_.command);
  fields_total_ = shape.is_counted() ? 1 : shape.size();
  return true;
}

Result<bool> StoreRequestParser::read_field(Field field) {
  switch (field) {
    case Field::kKey:
    case Field::kValue:
      return read_blob(field);
    case Field::kNumber: {
      const auto number = take<std::uint32_t>();
      request_.number = number.value_or(0);
      return number.has_value();
    }
    case Field::kDelta: {
      const auto delta = take<std::int64_t>();
      request_.delta = delta.value_or(0);
      return delta.has_value();
    }
    case Field::kCount:
      return read_count();
    case Field::kNone:
      break;
  }
  return Error(ErrorCode::kInternal, "a store request has more fields than its shape");
}

Result<bool> StoreRequestParser::read_count() {
  const auto count = take<std::uint64_t>();
  if (!count) return false;
  if (*count > kStoreMaxKeysPerRequest) {
    return over_limit(request_.command, "a number of keys", *count, kStoreMaxKeysPerRequest);
  }
  fields_total_ += static_cast<std::size_t>(*count) * (shape_of(request_.command).size() - 1);
  return true;
}

Result<bool> StoreRequestParser::read_blob(Field field) {
  const auto length = peek<std::uint64_t>();
  if (!length) return false;
  const bool is_key = field == Field::kKey;
  const std::size_t limit = is_key ? kStoreMaxKeyBytes : kStoreMaxValueBytes;
  if (*length > limit) {
    return over_limit(request_.command, is_key ? "a key" : "a value", *length, limit);
  }
  const std::size_t begin = scanned_ + sizeof(*length);
  const std::size_t end = begin + static_cast<std::size_t>(*length);
  if (end > kStoreMaxMessageBytes) {
    return over_limit(request_.command, "a request", end, kStoreMaxMessageBytes);
  }
  if (pending_bytes() < end) return false;
  (is_key ? keys_ : values_).push_back({begin, end - begin});
  scanned_ = end;
  return true;
}

Result<void> StoreRequestParser::finish() {
  const auto views = [&](const std::vector<Extent>& extents, std::vector<std::string_view>& out) {
    const std::string_view request = std::string_view(buffer_).substr(start_, scanned_);
    out.clear();
    for (const Extent& extent : extents)
      out.push_back(request.substr(extent.offset, extent.length));
  };
  views(keys_, request_.keys);
  views(values_, request_.values);
  start_ += scanned_;
  scanned_ = 0;
  if (request_.command == StoreCommand::kValidate) {
    if (request_.number != kStoreMagic) return violation(request_.command, "another magic number");
    validated_ = true;
  }
  return {};
}

// Gives back what a large request needed; an idle connection costs little.
void StoreRequestParser::release_memory() {
  buffer_.clear();
  start_ = 0;
  if (buffer_.capacity() > kKeptCapacity) std::string().swap(buffer_);
  if (keys_.capacity() * sizeof(Extent) <= kKeptCapacity) return;
  std::vector<Extent>().swap(keys_);
  std::vector<Extent>().swap(values_);
  request_ = {};
}

template <typename T>
std::optional<T> StoreRequestParser::peek() const noexcept {
  if (pending_bytes() < scanned_ + sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, buffer_.data() + start_ + scanned_, sizeof(T));
  return value;
}

template <typename T>
std::optional<T> StoreRequestParser::take() noexcept {
  const std::optional<T> value = peek<T>();
  if (value) scanned_ += sizeof(T);
  return value;
}

void append_u8(std::string& out, std::uint8_t value) {
  append_number(out, value);
}
void append_u32(std::string& out, std::uint32_t value) {
  append_number(out, value);
}
void append_u64(std::string& out, std::uint64_t value) {
  append_number(out, value);
}
void append_i64(std::string& out, std::int64_t value) {
  append_number(out, value);
}

void append_blob(std::string& out, std::string_view bytes) {
  append_u64(out, bytes.size());
  out.append(bytes);
}

}  // namespace accel::supervisor
