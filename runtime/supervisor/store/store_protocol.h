// StoreProtocol: the wire format of c10d's TCPStore, read incrementally and written.
//
// Little-endian throughout; `str` and `bytes` are a u64 length and then the bytes. A connection
// begins with VALIDATE, exactly once, and carries any number of pipelined requests after it.
//
//    code  request      body                             reply
//    ----  -----------  -------------------------------  ------------------------------------------
//       0  VALIDATE     u32 magic                        none
//       1  SET          str key, bytes value             none
//       2  COMPARE_SET  str key, bytes expected, new     bytes: the value afterwards
//       3  GET          str key                          bytes, empty when absent
//       4  ADD          str key, i64 delta               i64 the new value, stored as decimal text
//       5  CHECK        u64 n, n x str                   u8: 0 all present, 1 not
//       6  WAIT         u64 n, n x str                   u8 0, once all are present
//       7  GETNUMKEYS   -                                i64
//       8  DELETE_KEY   str key                          i64 number deleted
//       9  APPEND       str key, bytes                   none
//      10  MULTI_GET    u64 n, n x str                   n x bytes
//      11  MULTI_SET    u64 n, n x (str, bytes)          none
//      12  CANCEL_WAIT  -                                u8 1
//      13  PING         u32 nonce                        u32 the same
//      14  QUEUE_PUSH   str key, bytes                   none
//      15  QUEUE_POP    str key                          i64 length before; bytes unless it is 0
//      16  QUEUE_LEN    str key                          i64
//      17  LIST_KEYS    -                                u64 n, n x str
//
// Threads:  values; no state is shared.
// Source:   the protocol is PyTorch's (torch/csrc/distributed/c10d, TCPStore);
//           tests/unit/supervisor/store_protocol_test.cc, tests/peer/store_client.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::supervisor {

enum class StoreCommand : std::uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
};
inline constexpr std::size_t kNumStoreCommands = 18;

inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;
inline constexpr std::size_t kStoreMaxKeyBytes = 8 << 10;
inline constexpr std::size_t kStoreMaxValueBytes = 8 << 20;
inline constexpr std::size_t kStoreMaxKeysPerRequest = 131'072;
// Of one request or reply in all. The peer has no such limit; without one, a single MULTI_SET
// within the others could be of 1 TiB.
inline constexpr std::size_t kStoreMaxMessageBytes = 64 << 20;

inline constexpr std::uint8_t kStoreReady = 0;         // CHECK
inline constexpr std::uint8_t kStoreNotReady = 1;      // CHECK
inline constexpr std::uint8_t kStoreWaitOver = 0;      // WAIT
inline constexpr std::uint8_t kStoreWaitCanceled = 1;  // CANCEL_WAIT

// One request. The views point into the parser that gave it.
struct StoreRequest {
  StoreCommand command = StoreCommand::kValidate;
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;  // COMPARE_SET: expected, new; MULTI_SET: one for each key
  std::int64_t delta = 0;                // ADD
  std::uint32_t number = 0;              // VALIDATE: the magic; PING: the nonce
};

// "MULTI_SET", for messages.
[[nodiscard]] std::string_view to_string(StoreCommand command) noexcept;

// Cuts one connection's bytes into requests.
//
// Lengths are checked as soon as they are read, before their bytes arrive; so a parser never holds
// more than one request of kStoreMaxMessageBytes plus what was fed last.
class StoreRequestParser {
 public:
  // Takes bytes as they came from the socket. Views given out before become invalid.
  void feed(std::string_view bytes);

  // The next whole request; nullptr when more bytes are needed. What it points to stays valid until
  // the next call.
  //
  // Errors  kProtocol (an unknown code, no or a second VALIDATE, a wrong magic) and kStoreLimit (a
  //         length or count above its limit). The connection is of no use after that.
  [[nodiscard]] Result<const StoreRequest*> next();

  // Whether a client may stay silent now: it was validated, and no request has begun.
  [[nodiscard]] bool is_between_requests() const noexcept {
    return validated_ && pending_bytes() == 0;
  }

  // Bytes held that next() has not given out.
  [[nodiscard]] std::size_t pending_bytes() const noexcept { return buffer_.size() - start_; }

 private:
  enum class Field : std::uint8_t { kNone, kKey, kValue, kCount, kNumber, kDelta };
  struct Shape;  // the fields of one command
  static const Shape& shape_of(StoreCommand command) noexcept;
  struct Extent {
    std::size_t offset = 0;  // from the start of the request
    std::size_t length = 0;
  };

  [[nodiscard]] Result<bool> read_code();
  [[nodiscard]] Result<bool> read_field(Field field);
  [[nodiscard]] Result<bool> read_count();
  [[nodiscard]] Result<bool> read_blob(Field field);
  [[nodiscard]] Result<void> finish();
  void release_memory();
  // The number at scanned_; take() goes past it. Nothing when it is not all there.
  template <typename T>
  [[nodiscard]] std::optional<T> peek() const noexcept;
  template <typename T>
  [[nodiscard]] std::optional<T> take() noexcept;

  std::string buffer_;
  std::size_t start_ = 0;    // where the current request begins in buffer_
  std::size_t scanned_ = 0;  // bytes of it that are understood; 0 before its code is read
  std::size_t fields_done_ = 0;
  std::size_t fields_total_ = 0;  // grows when a count is read
  bool validated_ = false;
  std::vector<Extent> keys_;
  std::vector<Extent> values_;
  StoreRequest request_;
};

// Replies.
void append_u8(std::string& out, std::uint8_t value);
void append_u32(std::string& out, std::uint32_t value);
void append_u64(std::string& out, std::uint64_t value);
void append_i64(std::string& out, std::int64_t value);
void append_blob(std::string& out, std::string_view bytes);

}  // namespace accel::supervisor
