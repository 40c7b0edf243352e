#include <algorithm>
#include <cstring>

#include <accel/channel_layout.h>

#include "runtime/printable.h"

// Sequence locks without fences: the writer stores the odd number first and each field with
// release; so a reader that sees a new field (acquire) also sees the odd number when it looks
// again. On x86 all of this is plain moves. A reader that never gets a quiet moment gives up: the
// worker may have died inside, or may be hostile.

namespace accel {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);

static_assert(offsetof(ChannelHeader, magic) == 0 && offsetof(ChannelHeader, version) == 8 &&
              offsetof(ChannelHeader, bytes) == 12);
static_assert(offsetof(ChannelSlot, sequence) == 0 && offsetof(ChannelSlot, step) == 8 &&
              offsetof(ChannelSlot, monotonic_ns) == 16 && offsetof(ChannelSlot, samples) == 24 &&
              offsetof(ChannelSlot, phase) == 32 && offsetof(ChannelSlot, flags) == 36);
static_assert(offsetof(ChannelDeclared, marks) == 4 && offsetof(ChannelDeclared, saved_step) == 8);
static_assert(offsetof(ChannelError, text) == 24 && offsetof(ChannelNotice, text) == 24);
static_assert(sizeof(ChannelHeader) == 64 && sizeof(ChannelSlot) == 64);
static_assert(sizeof(ChannelRequests) == 64 && sizeof(ChannelDeclared) == 64);
static_assert(sizeof(ChannelError) == 3840 && sizeof(ChannelRing) == 64);
static_assert(sizeof(ChannelNotice) == 256);
static_assert(sizeof(ChannelTimes) == 64 && sizeof(ChannelCalls) == 128);
static_assert(offsetof(ChannelCalls, hashes) == 24 && offsetof(ChannelCalls, text) == 72);
static_assert(sizeof(ChannelLayout) == kChannelBytes);

namespace {

constexpr int kReadTries = 64;

constexpr ChannelPart kParts[] = {
    {0, 64, "header", "supervisor"},
    {64, 64, "slot", "worker"},
    {128, 64, "requests", "both"},
    {192, 64, "declared", "worker"},
    {256, 3840, "error", "worker"},
    {4096, 64, "ring", "worker"},
    {4160, 3840, "notices", "worker"},
    {8000, 64, "times", "worker"},
    {8064, 128, "calls", "worker"},
};
static_assert(offsetof(ChannelLayout, header) == kParts[0].offset);
static_assert(offsetof(ChannelLayout, slot) == kParts[1].offset);
static_assert(offsetof(ChannelLayout, requests) == kParts[2].offset);
static_assert(offsetof(ChannelLayout, declared) == kParts[3].offset);
static_assert(offsetof(ChannelLayout, error) == kParts[4].offset);
static_assert(offsetof(ChannelLayout, ring) == kParts[5].offset);
static_assert(offsetof(ChannelLayout, notices) == kParts[6].offset);
static_assert(offsetof(ChannelLayout, times) == kParts[7].offset);
static_assert(offsetof(ChannelLayout, calls) == kParts[8].offset);

template <std::size_t N>
using Words = std::array<std::atomic<std::uint64_t>, N>;

template <std::size_t N>
std::size_t store_text(Words<N>& words, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), N * sizeof(std::uint64_t));
  for (std::size_t at = 0; at < length; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof(word), length - at));
    words[at / sizeof(word)].store(word, std::memory_order_release);
  }
  return length;
}

// Requires: length is at most what the words hold.
template <std::size_t N>
std::string load_text(const Words<N>& words, std::size_t length) {
  std::string text(length, '\0');
  for (std::size_t at = 0; at < length; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = words[at / sizeof(word)].load(std::memory_order_acquire);
    std::memcpy(text.data() + at, &word, std::min(sizeof(word), length - at));
  }
  return text;
}

// Runs `copy` until it saw a record that nobody was writing. `sequence` 0 is a record never
// written. False: there is no such record.
template <typename F>
bool read_quietly(const std::atomic<std::uint64_t>& sequence, F&& copy) {
  for (int i = 0; i < kReadTries; ++i) {
    const std::uint64_t before = sequence.load(std::memory_order_acquire);
    if (before == 0) return false;
    if (before % 2 == 1) continue;
    copy(before);
    if (sequence.load(std::memory_order_acquire) == before) return true;
  }
  return false;
}

// Copies one notice if it is the one of that number and whole.
std::optional<std::string> read_notice(const ChannelNotice& notice, std::uint64_t number) {
  const std::uint64_t whole = 2 * number + 2;
  if (notice.sequence.load(std::memory_order_acquire) != whole) return std::nullopt;
  const std::uint64_t length = notice.length.load(std::memory_order_acquire);
  if (length > kChannelNoticeWords * sizeof(std::uint64_t)) return std::nullopt;
  std::string text = load_text(notice.text, static_cast<std::size_t>(length));
  if (notice.sequence.load(std::memory_order_acquire) != whole) return std::nullopt;
  return printable(text);
}

// The last step of SplitMix64.
std::uint64_t mixed(std::uint64_t bits) noexcept {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

constexpr std::array kTimes = {&StepTimes::steps,
                               &StepTimes::total_ns,
                               &StepTimes::input_ns,
                               &StepTimes::communication_ns,
                               &StepTimes::io_ns,
                               &StepTimes::wait_ns};
static_assert(sizeof(StepTimes) == sizeof(std::uint64_t) * kTimes.size());

}  // namespace

std::span<const ChannelPart> channel_parts() {
  return kParts;
}

void write_heartbeat(ChannelSlot& slot, const Heartbeat& beat, std::uint64_t now_ns) noexcept {
  const std::uint64_t sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  slot.step.store(beat.step, std::memory_order_release);
  slot.monotonic_ns.store(now_ns, std::memory_order_release);
  slot.samples.store(beat.samples, std::memory_order_release);
  slot.phase.store(static_cast<std::uint32_t>(beat.phase), std::memory_order_release);
  slot.sequence.store(sequence + 2, std::memory_order_release);
}

void write_error(ChannelError& record, std::string_view text, std::uint64_t now_ns) noexcept {
  const std::uint64_t sequence =
      record.sequence.load(std::memory_order_relaxed) & ~std::uint64_t{1};
  record.sequence.store(sequence + 1, std::memory_order_relaxed);
  record.monotonic_ns.store(now_ns, std::memory_order_release);
  record.length.store(store_text(record.text, text), std::memory_order_release);
  record.sequence.store(sequence + 2, std::memory_order_release);
}

void write_notice(ChannelLayout& page, std::string_view text, std::uint64_t now_ns) noexcept {
  const std::uint64_t number = page.ring.written.load(std::memory_order_relaxed);
  ChannelNotice& notice = page.notices[number % kChannelNotices];
  notice.sequence.store(2 * number + 1, std::memory_order_relaxed);
  notice.monotonic_ns.store(now_ns, std::memory_order_release);
  notice.length.store(store_text(notice.text, text), std::memory_order_release);
  notice.sequence.store(2 * number + 2, std::memory_order_release);
  page.ring.written.store(number + 1, std::memory_order_release);
}

void write_times(ChannelTimes& record, const StepTimes& times) noexcept {
  const std::uint64_t sequence = record.sequence.load(std::memory_order_relaxed);
  record.sequence.store(sequence + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kTimes.size(); ++i)
    record.values[i].store(times.*kTimes[i], std::memory_order_release);
  record.sequence.store(sequence + 2, std::memory_order_release);
}

void write_call(ChannelCalls& record, std::uint64_t hash, std::string_view text) noexcept {
  const std::uint64_t sequence = record.sequence.load(std::memory_order_relaxed);
  const std::uint64_t number = record.number.load(std::memory_order_relaxed) + 1;
  const std::uint64_t before =
      record.hashes[(number - 1) % kChannelCallHashes].load(std::memory_order_relaxed);
  record.sequence.store(sequence + 1, std::memory_order_relaxed);
  record.number.store(number, std::memory_order_release);
  record.hashes[number % kChannelCallHashes].store(mixed(before + hash), std::memory_order_release);
  record.length.store(store_text(record.text, text), std::memory_order_release);
  record.sequence.store(sequence + 2, std::memory_order_release);
}

std::optional<HeartbeatSample> read_heartbeat(const ChannelSlot& slot) {
  HeartbeatSample sample;
  const bool is_whole = read_quietly(slot.sequence, [&](std::uint64_t sequence) {
    sample.beats = sequence / 2;
    sample.monotonic_ns = slot.monotonic_ns.load(std::memory_order_acquire);
    sample.beat.step = slot.step.load(std::memory_order_acquire);
    sample.beat.samples = slot.samples.load(std::memory_order_acquire);
    const std::uint32_t phase = slot.phase.load(std::memory_order_acquire);
    const auto last = static_cast<std::uint32_t>(WorkerPhase::kFinishing);
    sample.beat.phase = phase <= last ? static_cast<WorkerPhase>(phase) : WorkerPhase::kUnknown;
  });
  if (!is_whole) return std::nullopt;
  return sample;
}

Result<std::optional<WorkerError>> read_error(const ChannelError& record) {
  constexpr std::uint64_t kCapacity = kChannelErrorWords * sizeof(std::uint64_t);
  std::uint64_t length = 0;
  WorkerError error;
  const bool is_whole = read_quietly(record.sequence, [&](std::uint64_t) {
    length = record.length.load(std::memory_order_acquire);
    error.monotonic_ns = record.monotonic_ns.load(std::memory_order_acquire);
    error.text = load_text(record.text, static_cast<std::size_t>(std::min(length, kCapacity)));
  });
  if (!is_whole) return std::optional<WorkerError>();
  if (length > kCapacity) {
    return Error(ErrorCode::kChannelCorrupt,
                 "the error record says that it has " + std::to_string(length) +
                     " bytes; it cannot have more than " + std::to_string(kCapacity));
  }
  error.text = printable(error.text);
  return std::optional<WorkerError>(std::move(error));
}

std::optional<StepTimes> read_times(const ChannelTimes& record) {
  StepTimes times;
  const bool is_whole = read_quietly(record.sequence, [&](std::uint64_t) {
    for (std::size_t i = 0; i < kTimes.size(); ++i)
      times.*kTimes[i] = record.values[i].load(std::memory_order_acquire);
  });
  if (!is_whole) return std::nullopt;
  return times;
}

std::optional<RankCalls> read_calls(const ChannelCalls& record) {
  constexpr std::uint64_t kCapacity = kChannelCallWords * sizeof(std::uint64_t);
  RankCalls calls;
  const bool is_whole = read_quietly(record.sequence, [&](std::uint64_t) {
    calls.number = record.number.load(std::memory_order_acquire);
    const std::uint64_t known = std::min<std::uint64_t>(calls.number, kChannelCallHashes);
    calls.hashes.clear();
    for (std::uint64_t i = 0; i < known; ++i) {
      calls.hashes.push_back(
          record.hashes[(calls.number - i) % kChannelCallHashes].load(std::memory_order_acquire));
    }
    const std::uint64_t length = record.length.load(std::memory_order_acquire);
    calls.text = load_text(record.text, static_cast<std::size_t>(std::min(length, kCapacity)));
  });
  if (!is_whole) return std::nullopt;
  calls.text = printable(calls.text);
  std::replace(calls.text.begin(), calls.text.end(), '\n', ' ');
  return calls;
}

NoticesRead read_notices(const ChannelLayout& page, std::uint64_t first) {
  const std::uint64_t written = page.ring.written.load(std::memory_order_acquire);
  NoticesRead read;
  read.next = written;
  // A count that went back was written by no one who keeps to the rules; start over behind it.
  const std::uint64_t oldest = written > kChannelNotices ? written - kChannelNotices : 0;
  for (std::uint64_t number = std::max(first, oldest); number < written; ++number) {
    auto text = read_notice(page.notices[number % kChannelNotices], number);
    if (text) read.texts.push_back(std::move(*text));
  }
  return read;
}

}  // namespace accel
