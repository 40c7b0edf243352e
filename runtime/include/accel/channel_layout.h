// ChannelLayout: the bytes of the memory that a worker and its supervisor share.
//
// One memfd of kChannelBytes per worker and generation, sealed against resizing. Each part has one
// writer; the supervisor trusts nothing that it reads here.
//
//   offset  bytes  part       writer      content
//   ------  -----  ---------  ----------  -------------------------------------------------------
//        0     64  header     supervisor  magic, layout version, size
//       64     64  slot       worker      the heartbeat, under a sequence lock
//      128     64  requests   both        what the worker is asked to do; a futex word
//      192     64  declared   worker      what the worker says it can do, and that it has saved
//      256   3840  error      worker      the last error, under a sequence lock
//     4096     64  ring       worker      how many notices were ever written
//     4160   3840  notices    worker      the last 15 of them, 256 bytes each
//     8000     64  times      worker      where the time of its steps went, under a sequence lock
//     8064    128  calls      worker      its collective calls, under a sequence lock
//
// A sequence lock: the writer makes `sequence` odd, writes, makes it even again; a reader that saw
// an odd value, or another value afterwards, reads again. Every field is an atomic of its natural size,
// so neither side has a data race, even if the other side misbehaves.
//
// Threads:  one writer per part, any number of readers, in two processes.
// Source:   docs/internals/worker_channel.md (a test compares its table with channel_parts());
//           tests/unit/runtime/channel_layout_test.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/channel.h>
#include <accel/export.h>
#include <accel/result.h>

namespace accel {

inline constexpr std::uint64_t kChannelMagic = 0x314E48434C434341;  // "ACCLCHN1" in memory
inline constexpr std::uint32_t kChannelVersion = 1;
inline constexpr std::size_t kChannelBytes = 8192;

struct alignas(64) ChannelHeader {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> bytes;
};

struct alignas(64) ChannelSlot {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> step;
  std::atomic<std::uint64_t> monotonic_ns;  // CLOCK_MONOTONIC_COARSE: a few ms of resolution
  std::atomic<std::uint64_t> samples;       // seen by this worker since it started
  std::atomic<std::uint32_t> phase;         // WorkerPhase
  std::atomic<std::uint32_t> flags;         // reserved, zero
};

struct alignas(64) ChannelRequests {
  std::atomic<std::uint32_t> word;  // WorkerRequest bits; the futex
};

struct alignas(64) ChannelDeclared {
  std::atomic<std::uint32_t> word;        // WorkerAbility bits
  std::atomic<std::uint32_t> marks;       // WorkerMark bits
  std::atomic<std::uint64_t> saved_step;  // valid once the mark kSaved is set
};

// Completed work that a worker reports. A set of bits.
enum class WorkerMark : std::uint32_t {
  kSaved = 1,  // everything this rank has to save when it is preempted is on disk
};

inline constexpr std::size_t kChannelErrorWords = 477;  // 3816 bytes of text
struct alignas(64) ChannelError {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> monotonic_ns;
  std::atomic<std::uint64_t> length;  // of the text, in bytes
  std::array<std::atomic<std::uint64_t>, kChannelErrorWords> text;
};

inline constexpr std::size_t kChannelNoticeWords = 29;  // 232 bytes of text
struct ChannelNotice {
  std::atomic<std::uint64_t> sequence;  // 2 * number + 1 while it is written, then + 2
  std::atomic<std::uint64_t> monotonic_ns;
  std::atomic<std::uint64_t> length;
  std::array<std::atomic<std::uint64_t>, kChannelNoticeWords> text;
};

struct alignas(64) ChannelRing {
  std::atomic<std::uint64_t>
      written;  // notices ever written; number n is in slot n % kChannelNotices
};

struct alignas(64) ChannelTimes {
  std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, 6> values;  // the members of StepTimes, in their order
};

// The rolling hash h(n) = mix(h(n - 1) + hash of call n), h(0) = 0, shows whether ranks made the same calls up to number n.
inline constexpr std::size_t kChannelCallHashes = 6;
inline constexpr std::size_t kChannelCallWords = 7;  // 56 bytes of text
struct alignas(64) ChannelCalls {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> number;                                  // of the last call, from 1
  std::atomic<std::uint64_t> length;                                  // of its text, in bytes
  std::array<std::atomic<std::uint64_t>, kChannelCallHashes> hashes;  // h(n) is in slot n mod 6
  std::array<std::atomic<std::uint64_t>, kChannelCallWords> text;
};

inline constexpr std::size_t kChannelNotices = 15;
struct ChannelLayout {
  ChannelHeader header;
  ChannelSlot slot;
  ChannelRequests requests;
  ChannelDeclared declared;
  ChannelError error;
  ChannelRing ring;
  std::array<ChannelNotice, kChannelNotices> notices;
  ChannelTimes times;
  ChannelCalls calls;
};

// One row of the table above.
struct ChannelPart {
  std::size_t offset;
  std::size_t bytes;
  std::string_view name;
  std::string_view writer;
};
ACCEL_EXPORT std::span<const ChannelPart> channel_parts();

// ---- the worker's side: one thread at a time per part, no system call, never waits ----

// The worker is alive and had this progress at now_ns.
void write_heartbeat(ChannelSlot& slot, const Heartbeat& beat, std::uint64_t now_ns) noexcept;
// A text that is too long is cut.
void write_error(ChannelError& record, std::string_view text, std::uint64_t now_ns) noexcept;
void write_notice(ChannelLayout& page, std::string_view text, std::uint64_t now_ns) noexcept;
void write_times(ChannelTimes& record, const StepTimes& times) noexcept;
// hash: of this call alone.
void write_call(ChannelCalls& record, std::uint64_t hash, std::string_view text) noexcept;

// ---- the supervisor's side: works on copies, and accepts any bytes ----

struct HeartbeatSample {
  Heartbeat beat;
  std::uint64_t beats = 0;         // so far; if it does not change, the worker makes no progress
  std::uint64_t monotonic_ns = 0;  // of the last one, from the worker
};

struct WorkerError {
  std::string text;  // printable (runtime/printable.h)
  std::uint64_t monotonic_ns = 0;
};

// std::nullopt before the first heartbeat, and if the worker was writing at every try.
[[nodiscard]] std::optional<HeartbeatSample> read_heartbeat(const ChannelSlot& slot);

// std::nullopt if there is none, or if a worker died while writing it.
// Errors  kChannelCorrupt: the bytes cannot be an error record.
[[nodiscard]] Result<std::optional<WorkerError>> read_error(const ChannelError& record);

// std::nullopt when there are none, and as read_heartbeat().
[[nodiscard]] std::optional<StepTimes> read_times(const ChannelTimes& record);

// The last calls of a rank. hashes[i] is the hash up to call number - i, for the calls that exist.
struct RankCalls {
  int global_rank = 0;
  std::uint64_t number = 0;
  std::vector<std::uint64_t> hashes;
  std::string text;  // of the last call; printable, one line
};
// std::nullopt when there are none, and as read_heartbeat(); the caller sets the rank.
[[nodiscard]] std::optional<RankCalls> read_calls(const ChannelCalls& record);

// The notices from number `first` on, printable, and the number to continue with. Notices that were
// overwritten before they were read, or whose bytes are invalid, are skipped.
struct NoticesRead {
  std::vector<std::string> texts;
  std::uint64_t next = 0;
};
[[nodiscard]] NoticesRead read_notices(const ChannelLayout& page, std::uint64_t first);

}  // namespace accel
