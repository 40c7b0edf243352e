// The memory for in-memory checkpoints as the supervisor holds it: named memory of the worker channel, kept for the job.

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <accel/channel.h>
#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/checkpoint/memory/node_memory.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "runtime/available_memory.h"
#include "runtime/byte_size.h"
#include "runtime/system.h"

namespace accel::checkpoint {
namespace {

class SupervisorMemory final : public MemoryKeeper {
 public:
  explicit SupervisorMemory(WorkerChannel& channel) : channel_(channel) {}

  Result<std::span<std::byte>> get(const std::string& name, std::size_t bytes) override {
    Result<SharedMemory> memory = channel_.get_shared(name, bytes, Keep::kJob);
    if (!memory && memory.error().code() == ErrorCode::kStoreLimit) {
      return Error(
          ErrorCode::kOutOfMemory,
          "in-memory checkpoints would take " + byte_text(bytes) +
              " on this node, more than its supervisor has left: " + memory.error().message(),
          "leave memory_checkpoint_every out and save to disk, or divide the model over "
          "more nodes");
    }
    if (!memory) return std::move(memory).error();
    const std::span<std::byte> span(memory->data(), memory->size());
    mapped_.emplace(span.data(), *std::move(memory));
    return span;
  }
  void unmap(std::span<std::byte> memory) override { mapped_.erase(memory.data()); }
  void drop(const std::string& name) override { std::ignore = channel_.drop_shared(name); }

  std::uint64_t free_bytes() const override {
    // Not known: the supervisor's quota is what holds.
    return machine_memory_available().value_or(~std::uint64_t{0});
  }
  std::vector<CgroupRoom> rooms() const override { return cgroup_rooms(real_system()); }

 private:
  WorkerChannel& channel_;
  std::map<std::byte*, SharedMemory> mapped_;
};

}  // namespace

std::unique_ptr<MemoryKeeper> supervisor_memory() {
  WorkerChannel* const channel = detail::supervisor_channel();
  return channel == nullptr ? nullptr : std::make_unique<SupervisorMemory>(*channel);
}

}  // namespace accel::checkpoint
