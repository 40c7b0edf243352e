// ChannelLayout: the bytes of the memory that a worker and its supervisor share.
//
// One memfd of kChannelBytes per worker and generation, sealed against resizing. Each part has one
// writer; the supervisor trusts nothing it reads here.
//
//   offset  bytes  part       writer      content
//   ------  -----  ---------  ----------  -------------------------------------------------------
//        0     64  header     supervisor  magic, layout version, size
//       64     64  slot       worker      the heartbeat, under a sequence lock
//      128     64  requests   both        what the worker is asked to do; a futex word
//      192     64  declared   worker      what the worker says it can do
//      256   3840  error      worker      the last error, under a sequence lock
//     4096     64  ring       worker      how many notices were ever written
//     4160   3840  notices    worker      the last 15 of them, 256 bytes each
//     8000    192  reserved   -           zero
//
// A sequence lock: the writer makes `sequence` odd, writes, makes it even again; a reader that saw
// an odd one, or another one afterwards, reads again. Every field is an atomic of its natural size,
// so neither side has a data race whatever the other does.
//
// Source:   docs/worker_channel.md; static_asserts in channel_layout.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

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
  std::atomic<std::uint32_t> word;  // WorkerAbility bits
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
  std::atomic<std::uint64_t> written;  // notices ever written; number n lies in n % kChannelNotices
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
  std::array<std::uint64_t, 24> reserved;
};

}  // namespace accel
