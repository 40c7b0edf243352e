#include "libaccel/interception/state_staging.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <unistd.h>

#include <accel/error.h>

namespace accel {
namespace {

// Addresses [begin, end).
struct StagedRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Not data(): some storages refuse that to who is no operator.
const std::byte* storage_memory(const c10::TensorImpl& tensor) {
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  return static_cast<const std::byte*>(storage._mutable_data_ptr_no_checks().get());
}

// The whole storage of the tensor, because views that do not overlap count one version; empty where it has none in memory of this process.
StagedRange range_of_storage(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(storage_memory(tensor));
  return {begin, begin + (begin == 0 ? 0 : tensor.unsafe_storage().nbytes())};
}

// By address, those that overlap as one.
std::vector<StagedRange> joined_ranges(std::vector<StagedRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const StagedRange& a, const StagedRange& b) {
    return a.begin < b.begin;
  });
  std::vector<StagedRange> joined;
  for (const StagedRange& range : ranges) {
    if (joined.empty() || joined.back().end < range.begin)
      joined.push_back(range);
    else
      joined.back().end = std::max(joined.back().end, range.end);
  }
  return joined;
}

std::function<void()>& staging_gate() {
  static auto& gate = *new std::function<void()>;
  return gate;
}

}  // namespace

struct StateStaging::Copies {
  struct Chunk {
    std::size_t tensor;
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  struct Seen {
    std::size_t tensor;  // whose name messages have
    at::Tensor watched;
    const void* data;
    std::int64_t version;
  };

  explicit Copies(std::vector<StagedTensor> list);

  // Takes chunks until none is left.
  void take_chunks(const std::function<void()>& gate) noexcept {
    for (;;) {
      if (gate) gate();
      const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= chunks.size()) return;
      copy(chunks[i]);
      if (num_copied.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks.size()) complete();
    }
  }
  // Memory that a storage has no more is not read.
  void copy(const Chunk& chunk) noexcept {
    if (storage_memory(*tensors[chunk.tensor].from.unsafeGetTensorImpl()) == memory[chunk.tensor])
      std::memcpy(chunk.to, chunk.from, chunk.bytes);
    else
      lost.store(chunk.tensor, std::memory_order_relaxed);
  }
  void wait() const noexcept { is_whole.wait(false, std::memory_order_acquire); }
  void complete() noexcept;
  [[nodiscard]] bool overlaps(StagedRange range) const noexcept;

  std::vector<StagedTensor> tensors;
  std::vector<Seen> seen;
  std::vector<Chunk> chunks;
  std::vector<const std::byte*> memory;  // of the tensors' storages
  std::vector<StagedRange> ranges;       // by address
  pid_t process = ::getpid();
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> num_copied{0};
  std::atomic<bool> is_whole{false};
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::atomic<std::size_t> lost{kNone};  // a tensor whose storage got other memory
  std::optional<std::size_t> written;    // a tensor; to be read when it is whole
};

namespace {

using StagedCopies = StateStaging::Copies;

std::unique_ptr<at::ObserverContext> look_at_operator(const at::RecordFunction& call);

// Of this process. Nothing is ever removed from memory: threads may copy while it ends.
class Stagings {
 public:
  static Stagings& of_process() {
    static auto& stagings = *new Stagings;
    return stagings;
  }

  // Acquired: who goes on to write does so after the last read.
  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

  // Not those of a parent, in a child of fork(): it has memory of its own, and a lock that may never be given back.
  [[nodiscard]] bool is_of_this_process() const noexcept {
    return process_.load(std::memory_order_relaxed) == ::getpid();
  }

  [[nodiscard]] std::vector<std::shared_ptr<StagedCopies>> present() {
    const std::scoped_lock lock(mutex_);
    return present_;
  }

  [[nodiscard]] bool overlap(StagedRange range) {
    const std::scoped_lock lock(mutex_);
    return std::any_of(present_.begin(), present_.end(), [&](const auto& copies) {
      return copies->overlaps(range);
    });
  }

  void add(std::shared_ptr<StagedCopies> copies) {
    const std::scoped_lock lock(mutex_);
    present_.push_back(std::move(copies));
    process_.store(::getpid(), std::memory_order_relaxed);
    if (!observer_) {
      observer_ = at::addGlobalCallback(at::RecordFunctionCallback(&look_at_operator)
                                            .needsInputs(true)
                                            .scopes({at::RecordScope::FUNCTION}));
    }
    count_.store(present_.size(), std::memory_order_release);
  }

  void remove(const StagedCopies* copies) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(present_, [&](const auto& one) { return one.get() == copies; });
    if (present_.empty() && observer_) at::removeCallback(*std::exchange(observer_, std::nullopt));
    count_.store(present_.size(), std::memory_order_release);
  }

 private:
  std::atomic<std::size_t> count_{0};
  std::atomic<pid_t> process_{0};
  std::mutex mutex_;
  std::vector<std::shared_ptr<StagedCopies>> present_;
  std::optional<at::CallbackHandle> observer_;
};

bool has_own_copies() {
  return !Stagings::of_process().empty() && Stagings::of_process().is_of_this_process();
}

bool is_staged(const c10::TensorImpl& tensor) {
  const StagedRange range = range_of_storage(tensor);
  return range.begin != range.end && Stagings::of_process().overlap(range);
}

bool has_staged_tensor(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && is_staged(*value.unsafeToTensorImpl());
  if (!value.isTensorList()) return false;
  const auto list = value.toListRef();
  return std::any_of(list.begin(), list.end(), &has_staged_tensor);
}

// Most operators read: which those are is looked up for those alone that have such a tensor.
bool writes_to_staged(const at::RecordFunction& call) {
  const auto inputs = call.inputs();
  const auto* const first = std::find_if(inputs.begin(), inputs.end(), &has_staged_tensor);
  if (first == inputs.end()) return false;
  const std::optional<c10::OperatorName> name = call.operator_name();
  if (!name) return false;
  if (name->getNamespace() == std::optional<std::string_view>("c10d"))
    return true;  // says no writes
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) return false;
  const auto& arguments = op->schema().arguments();
  // A stack may have more below.
  const std::size_t below = inputs.size() - std::min(inputs.size(), arguments.size());
  for (auto i = static_cast<std::size_t>(first - inputs.begin()); i < inputs.size(); ++i) {
    if (i < below) continue;
    const auto* const alias = arguments[i - below].alias_info();
    if (alias != nullptr && alias->isWrite() && has_staged_tensor(inputs[i])) return true;
  }
  return false;
}

std::unique_ptr<at::ObserverContext> look_at_operator(const at::RecordFunction& call) {
  if (has_own_copies() && writes_to_staged(call)) before_state_is_written();
  return nullptr;
}

}  // namespace

StateStaging::Copies::Copies(std::vector<StagedTensor> list) : tensors(std::move(list)) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StagedTensor& tensor = tensors[i];
    const auto* const from = static_cast<const std::byte*>(tensor.from.const_data_ptr());
    auto* const to = static_cast<std::byte*>(tensor.to.mutable_data_ptr());
    const std::size_t bytes = tensor.from.nbytes();
    memory.push_back(storage_memory(*tensor.from.unsafeGetTensorImpl()));
    for (std::size_t begin = 0; begin < bytes; begin += kChunkBytes)
      chunks.push_back({i, from + begin, to + begin, std::min(kChunkBytes, bytes - begin)});
    const auto watch = [&](const at::Tensor& watched) {
      const bool is_counted = !watched.is_inference();
      seen.push_back({i, watched, watched.const_data_ptr(), is_counted ? watched._version() : 0});
    };
    watch(tensor.from);
    for (const at::Tensor& alias : tensor.aliases) watch(alias);
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    if (bytes > 0) ranges.push_back({address, address + bytes});
  }
  ranges = joined_ranges(std::move(ranges));
}

// The last range that begins before the end is the only one that may reach into it.
bool StateStaging::Copies::overlaps(StagedRange range) const noexcept {
  const auto behind = std::lower_bound(
      ranges.begin(), ranges.end(), range.end, [](const StagedRange& one, std::uintptr_t end) {
        return one.begin < end;
      });
  return behind != ranges.begin() && std::prev(behind)->end > range.begin;
}

void StateStaging::Copies::complete() noexcept {
  for (const Seen& one : seen) {
    const std::int64_t version = one.watched.is_inference() ? 0 : one.watched._version();
    if (one.watched.const_data_ptr() == one.data && version == one.version) continue;
    written = one.tensor;
    break;
  }
  if (const std::size_t tensor = lost.load(std::memory_order_relaxed); tensor != kNone)
    written = tensor;
  // A model that is gone need not stay in memory until the save has ended.
  seen.clear();
  for (StagedTensor& tensor : tensors)
    tensor = {.name = std::move(tensor.name), .from = {}, .to = {}};
  Stagings::of_process().remove(this);
  is_whole.store(true, std::memory_order_release);
  is_whole.notify_all();
}

StateStaging::StateStaging(std::vector<StagedTensor> tensors)
    : copies_(std::make_shared<Copies>(std::move(tensors))) {
  if (copies_->chunks.empty()) {
    copies_->is_whole = true;
    return;
  }
  Stagings::of_process().add(copies_);
}

StateStaging::~StateStaging() {
  copies_->take_chunks({});
  copies_->wait();
}

void StateStaging::copy() noexcept {
  copies_->take_chunks(staging_gate());
  copies_->wait();
}

void StateStaging::check() const {
  if (!copies_->written) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      copies_->tensors[*copies_->written].name +
          " was written to, or given other memory, past LibTorch's operators while a save in the "
          "background was to copy it",
      "save with async_copy = AsyncCopy::kAtOnce, or write after wait_for_save()");
}

void StateStaging::set_gate(std::function<void()> gate) {
  staging_gate() = std::move(gate);
}

// Who is about to write waits for all of it, so all threads of this one's operators help.
void before_state_is_written() noexcept {
  if (!has_own_copies()) return;
  for (const auto& copies : Stagings::of_process().present()) {
    if (copies->process != ::getpid()) continue;
    at::parallel_for(
        0, at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) { copies->take_chunks({}); });
    copies->wait();
  }
}

void before_write_to(const at::Tensor& tensor) noexcept {
  if (!has_own_copies() || !tensor.defined()) return;
  if (is_staged(*tensor.unsafeGetTensorImpl())) before_state_is_written();
}

}  // namespace accel
