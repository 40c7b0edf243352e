// WireMessage: a message in the wire format of Protocol Buffers, built field by field.
//
// libaccel must not link Protobuf (libtorch_cpu.so has its own), and needs to write a dozen small messages: so only what writes.
// Fields are written when they are set, also with their default value, as proto2 does and every parser accepts.
//
// Source:   protobuf.dev/programming-guides/encoding; read back by TensorBoard in tests/peer/trackers.py.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace accel::tracking {

class WireMessage {
 public:
  WireMessage& add_varint(int field, std::uint64_t value) {
    append_key(field, 0);
    append_varint(value);
    return *this;
  }
  WireMessage& add_int(int field, std::int64_t value) {
    return add_varint(field, static_cast<std::uint64_t>(value));
  }
  WireMessage& add_double(int field, double value) {
    append_key(field, 1);
    append_little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  WireMessage& add_float(int field, float value) {
    append_key(field, 5);
    append_little_endian(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  WireMessage& add_bytes(int field, std::string_view bytes) {
    append_key(field, 2);
    append_varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  WireMessage& add_message(int field, const WireMessage& message) {
    return add_bytes(field, message.bytes_);
  }
  // repeated double, packed
  template <typename Doubles>
  WireMessage& add_packed(int field, const Doubles& values) {
    append_key(field, 2);
    append_varint(values.size() * 8);
    for (const double value : values) append_little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }

  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  void append_key(int field, unsigned wire_type) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | wire_type);
  }
  void append_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void append_little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFF);
  }

  std::string bytes_;
};

}  // namespace accel::tracking
