#include "launcher/curves/event_records.h"

#include <bit>
#include <cstddef>
#include <optional>
#include <utility>

#include "runtime/checksum.h"

namespace accel::launcher {
namespace {

// event.proto, summary.proto
enum EventFieldNumber { kEventTime = 1, kEventStep = 2, kEventSummary = 5 };
enum SummaryFieldNumber { kValueOfSummary = 1 };
enum ValueFieldNumber { kTagOfValue = 1, kSimpleValueOfValue = 2 };

std::uint64_t read_little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

bool has_checksum(std::string_view bytes, std::string_view checksum) {
  const std::uint32_t crc = crc32c_of(bytes);
  return read_little_endian(checksum) == ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// The fields of a message in the wire format of Protocol Buffers, one by one.
class WireFields {
 public:
  explicit WireFields(std::string_view message) : rest_(message) {}

  // False at the end, and where the message is broken.
  bool next() {
    if (rest_.empty() || is_broken_) return false;
    const auto key = take_varint();
    if (!key) return fail();
    number_ = static_cast<int>(*key >> 3);
    switch (*key & 7) {
      case 0:
        return take_number();
      case 1:
        return take_bytes(8);
      case 2:
        if (const auto length = take_varint()) return take_bytes(*length);
        return fail();
      case 5:
        return take_bytes(4);
      default:
        return fail();
    }
  }

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] std::uint64_t varint() const { return varint_; }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }
  [[nodiscard]] bool is_broken() const { return is_broken_; }

 private:
  bool fail() {
    is_broken_ = true;
    return false;
  }
  std::optional<std::uint64_t> take_varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  bool take_number() {
    const auto value = take_varint();
    if (!value) return fail();
    varint_ = *value;
    bytes_ = {};
    return true;
  }
  bool take_bytes(std::uint64_t length) {
    if (length > rest_.size()) return fail();
    bytes_ = rest_.substr(0, static_cast<std::size_t>(length));
    rest_.remove_prefix(bytes_.size());
    return true;
  }

  std::string_view rest_;
  std::string_view bytes_;  // of the field; empty for a varint
  std::uint64_t varint_ = 0;
  int number_ = 0;
  bool is_broken_ = false;
};

// False: the message is broken.
bool add_value(std::string_view message, const EventScalar& event, EventScalars& all) {
  EventScalar scalar = event;
  bool has_number = false;
  WireFields fields(message);
  while (fields.next()) {
    if (fields.number() == kTagOfValue) scalar.tag = fields.bytes();
    if (fields.number() == kSimpleValueOfValue && fields.bytes().size() == 4) {
      const auto bits = static_cast<std::uint32_t>(read_little_endian(fields.bytes()));
      scalar.value = std::bit_cast<float>(bits);
      has_number = true;
    }
  }
  if (has_number) all.scalars.push_back(std::move(scalar));
  return !fields.is_broken();
}

bool add_event(std::string_view message, EventScalars& all) {
  EventScalar event;
  std::vector<std::string_view> summaries;  // they may stand before the step
  WireFields fields(message);
  while (fields.next()) {
    if (fields.number() == kEventTime && fields.bytes().size() == 8)
      event.wall_time = std::bit_cast<double>(read_little_endian(fields.bytes()));
    if (fields.number() == kEventStep) event.step = static_cast<std::int64_t>(fields.varint());
    if (fields.number() == kEventSummary) summaries.push_back(fields.bytes());
  }
  if (fields.is_broken()) return false;
  for (const std::string_view summary : summaries) {
    WireFields values(summary);
    while (values.next()) {
      if (values.number() == kValueOfSummary && !add_value(values.bytes(), event, all))
        return false;
    }
    if (values.is_broken()) return false;
  }
  return true;
}

}  // namespace

EventScalars event_scalars(std::string_view file) {
  constexpr std::size_t kHead = 12;
  constexpr std::size_t kFoot = 4;
  EventScalars all;
  while (file.size() >= kHead) {
    const std::uint64_t length = read_little_endian(file.substr(0, 8));
    if (!has_checksum(file.substr(0, 8), file.substr(8, 4))) {
      all.is_broken = true;
      break;
    }
    if (file.size() < kHead + kFoot || length > file.size() - kHead - kFoot) break;
    const std::string_view event = file.substr(kHead, static_cast<std::size_t>(length));
    file.remove_prefix(kHead + event.size());
    all.is_broken = !has_checksum(event, file.substr(0, kFoot)) || !add_event(event, all);
    if (all.is_broken) break;
    file.remove_prefix(kFoot);
  }
  return all;
}

}  // namespace accel::launcher
