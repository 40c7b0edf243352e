// Rooms are lists of free blocks by size, behind one lock for the process: LibTorch's allocator is one for the process too, and
// the tensors that have blocks may end after every object. A room whose owner is gone is forgotten with its last block.
//
// A gradient may be summed in place before the end of the backward, so nothing that is still read may lie in its memory: what
// has arrived, of which autograd has made the gradient, and the uses of its storage tell.
//
// raw_allocate(), which oneDNN calls, knows the address alone: so a block's context is its address, and what is freed is looked
// for among the blocks first.

#include "libaccel/engine/gradients/gradient_room.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <c10/core/Allocator.h>
#include <c10/util/env.h>

#include <accel/types.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/interception/backward_hooks.h"
#include "libaccel/interception/cpu_allocator.h"
#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

// More room, when it has to be: the pages that shared memory is given in.
constexpr std::size_t kGrowBytes = kHugePage;

// Of a block, which begins at a cache line.
std::size_t block_bytes(std::size_t bytes) {
  return rounded_up(bytes, kCacheLine);
}

struct Blocks {
  const void* owner = nullptr;  // the group of the ranks that can see them
  std::shared_ptr<std::byte> memory;
  std::unordered_map<const std::byte*, std::size_t> size_of;         // by block
  std::unordered_map<std::size_t, std::vector<std::byte*>> free_of;  // blocks, by size
  std::size_t num_taken = 0;
  bool is_retired = false;  // nobody takes blocks any more
};

thread_local int num_ordinary = 0;  // OrdinaryMemory of this thread

// Of all rooms of the process.
class AllBlocks final : public interception::CpuMemory {
 public:
  // Tensors may end after everything else.
  static AllBlocks& get() {
    static auto* const all = new AllBlocks();
    return *all;
  }

  void add(Blocks room) {
    const std::lock_guard lock(mutex_);
    const std::byte* const begin = room.memory.get();
    rooms_.emplace(begin, std::move(room));
    ++num_open_;
  }
  void retire(const std::byte* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = rooms_.find(begin);
    found->second.is_retired = true;
    --num_open_;
    if (found->second.num_taken == 0) rooms_.erase(found);
  }
  // nullptr: there is none. owner: nullptr: anybody.
  [[nodiscard]] std::byte* take(std::size_t bytes, const void* owner = nullptr) {
    if (num_open_.load(std::memory_order_relaxed) == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    for (auto& [begin, room] : rooms_) {
      if (room.is_retired || (owner != nullptr && room.owner != owner)) continue;
      if (std::byte* const block = take_from(room, bytes)) return block;
    }
    return nullptr;
  }
  [[nodiscard]] bool has(const std::byte* block, const void* owner) {
    const std::lock_guard lock(mutex_);
    const auto found = room_of(block);
    return found != rooms_.end() && found->second.owner == owner;
  }
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes < GradientRoom::kSmallest || num_ordinary > 0 || !interception::is_in_backward())
      return {};
    std::byte* const block = take(bytes);
    return block == nullptr ? at::DataPtr() : owned(block);
  }
  // Its context is its address.
  [[nodiscard]] static at::DataPtr owned(std::byte* block) {
    return {block, block, [](void* memory) { get().free(memory); }, at::Device(at::kCPU)};
  }
  // Whether it was a block.
  bool free(void* memory) override {
    auto* const block = static_cast<std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    const auto found = room_of(block);
    if (found == rooms_.end()) return false;
    Blocks& room = found->second;
    room.free_of[room.size_of.at(block)].push_back(block);
    if (--room.num_taken == 0 && room.is_retired) rooms_.erase(found);
    return true;
  }

 private:
  using Rooms = std::map<const std::byte*, Blocks>;  // by their beginning

  Rooms::iterator room_of(const std::byte* block) {
    auto found = rooms_.upper_bound(block);
    if (found == rooms_.begin()) return rooms_.end();
    --found;
    return found->second.size_of.contains(block) ? found : rooms_.end();
  }
  static std::byte* take_from(Blocks& room, std::size_t bytes) {
    const auto found = room.free_of.find(bytes);
    if (found == room.free_of.end() || found->second.empty()) return nullptr;
    // The one that was used last may still be in a cache.
    std::byte* const block = found->second.back();
    found->second.pop_back();
    ++room.num_taken;
    return block;
  }

  std::mutex mutex_;
  Rooms rooms_;
  std::atomic<int> num_open_ = 0;
};

// Whether nothing but autograd's own `arrived`, of which it has made the gradient, lies in the gradient's memory. One that
// was added to is alone (separate_gradients()), but for views that the user has.
bool is_alone(const at::Tensor& gradient, const at::Tensor& arrived) {
  if (!arrived.defined() || !arrived.is_alias_of(gradient)) return true;
  const std::size_t num_uses = gradient.storage().use_count();
  if (!arrived.is_view()) return num_uses == 2;
  return arrived._base().use_count() == 1 && num_uses == 3;
}

bool lacks_any(ProcessGroup& group, bool has_memory) {
  at::Tensor lacks = at::full({1}, has_memory ? 0 : 1, at::kInt);
  group.all_reduce_(lacks, Reduction::kMax, "sharing memory for gradients");
  return lacks.item<int>() != 0;
}

}  // namespace

std::unique_ptr<GradientRoom> GradientRoom::create(std::shared_ptr<ProcessGroup> group,
                                                   std::span<const std::size_t> sizes) {
  if (sizes.empty() || group->backend() != "shm") return nullptr;
  std::unique_ptr<GradientRoom> room(new GradientRoom(group));
  const bool has_memory = may_share_gradients() && room->add(sizes);
  if (lacks_any(*group, has_memory)) return nullptr;
  static const bool stands_before = (interception::stand_before_allocator(AllBlocks::get()), true);
  (void)stands_before;
  return room;
}

bool GradientRoom::add(std::span<const std::size_t> sizes) {
  std::size_t bytes = 0;
  for (const std::size_t size : sizes) bytes += block_bytes(size);
  Blocks blocks = {.owner = group_.get(), .memory = group_->allocate_shared(bytes)};
  if (blocks.memory == nullptr) return false;
  std::byte* block = blocks.memory.get();
  begins_.push_back(block);
  for (const std::size_t size : sizes) {
    blocks.size_of[block] = size;
    blocks.free_of[size].push_back(block);
    block += block_bytes(size);
  }
  AllBlocks::get().add(std::move(blocks));
  return true;
}

GradientRoom::~GradientRoom() {
  close();
}

void GradientRoom::close() noexcept {
  for (std::byte* const begin : std::exchange(begins_, {})) AllBlocks::get().retire(begin);
}

at::Tensor GradientRoom::empty_like(const at::Tensor& like) {
  std::byte* block = AllBlocks::get().take(like.nbytes(), group_.get());
  if (block == nullptr) {
    const std::size_t num_blocks =
        std::max<std::size_t>(1, kGrowBytes / block_bytes(like.nbytes()));
    if (add(std::vector<std::size_t>(num_blocks, like.nbytes())))
      block = AllBlocks::get().take(like.nbytes(), group_.get());
  }
  if (block == nullptr) return at::empty_strided(like.sizes(), like.strides(), like.options());
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       like.nbytes(),
                       AllBlocks::owned(block),
                       /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

at::Tensor GradientRoom::taken(const at::Tensor& gradient,
                               const at::Tensor& like,
                               const at::Tensor& arrived) {
  const bool can_stay = gradient.defined() && holds(gradient) &&
                        gradient.scalar_type() == like.scalar_type() &&
                        gradient.sizes() == like.sizes() && gradient.strides() == like.strides() &&
                        is_alone(gradient, arrived);
  if (can_stay) return gradient;
  at::Tensor copy = empty_like(like);
  return gradient.defined() ? copy.copy_(gradient) : copy.zero_();
}

bool GradientRoom::holds(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes() &&
         AllBlocks::get().has(static_cast<const std::byte*>(tensor.const_data_ptr()), group_.get());
}

bool may_share_gradients() {
  return c10::utils::check_env("DDP_DISABLE_COMM_MEM") != true;
}

OrdinaryMemory::OrdinaryMemory() noexcept {
  ++num_ordinary;
}

OrdinaryMemory::~OrdinaryMemory() {
  --num_ordinary;
}

void separate_gradients(const std::vector<NamedParameter>& parameters) {
  std::unordered_set<const c10::StorageImpl*> seen;
  for (const NamedParameter& parameter : parameters) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined() || !gradient.has_storage()) continue;
    if (!seen.insert(gradient.storage().unsafeGetStorageImpl()).second)
      gradient = gradient.detach().clone();
  }
}

}  // namespace accel
