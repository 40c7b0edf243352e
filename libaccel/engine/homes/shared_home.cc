// One memory for the parameters of all ranks of a node.
//
//   memfd:   | unit 0: shard of rank 0 | ... | shard of rank n-1 | pad to a page | unit 1: ... |
//
// Rank 0 makes it and offers it (memory_offer.h); all say whether they have mapped it, and one that has not is enough for
// all to give up. It has no name: nothing is left when the ranks are gone.
//
// Each rank maps every unit twice. The module's parameters are views of a mapping that can only be read, so that code
// which writes to them (on every rank, into one memory) is stopped with the parameter's name instead of counting twice.
// The optimizer's pieces are views of the other one. Checkpoints are loaded between begin_load() and end_load(). Operators that
// write to a parameter throw before (engine/pager/write_permit.h): what is stopped by the mapping is code that has its address.
//
// The pages of a shard are reserved by its owner, so they count as its own and a lack of memory is an error, not SIGBUS.

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/homes/node_offer.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/memory/memory_offer.h"
#include "runtime/page_size.h"
#include "runtime/printable.h"
#include "runtime/unique_fd.h"

namespace accel::sharding {
namespace {

Result<std::vector<std::string>> tell_all(const Result<std::string>& own, ProcessGroup& group) {
  return gather_results(own, kHomeTextBytes, group, "sharing memory for parameters");
}

// Two ranges of pages that are one memory.
struct UnitMemory {
  std::unique_ptr<pager::GuardRange> reading;
  void* writing = MAP_FAILED;
  std::size_t bytes = 0;

  UnitMemory() = default;
  UnitMemory(const UnitMemory&) = delete;
  UnitMemory& operator=(const UnitMemory&) = delete;
  ~UnitMemory() {
    if (writing != MAP_FAILED) ::munmap(writing, bytes);
  }
};

class SharedHome final : public ParameterHome {
 public:
  SharedHome(const std::vector<Unit>& units, std::shared_ptr<ProcessGroup> group)
      : units_(units), group_(std::move(group)) {}

  // Maps all units. Errors  kOutOfMemory.
  Result<void> map(int memory, const std::vector<std::vector<pager::GuardLabel>>& labels) {
    off_t offset = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      auto unit = std::make_shared<UnitMemory>();
      unit->bytes = whole_pages(units_[i].bytes());
      if (auto reserved = reserve(memory, offset, i); !reserved) return reserved;
      try {
        unit->reading = std::make_unique<pager::GuardRange>(unit->bytes, labels[i]);
        unit->reading->map(memory, offset, 0, unit->bytes, pager::GuardRange::Access::kRead);
      } catch (const Error& error) {
        return error;
      }
      unit->writing =
          ::mmap(nullptr, unit->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, offset);
      if (unit->writing == MAP_FAILED) {
        return Error(ErrorCode::kOutOfMemory,
                     std::to_string(unit->bytes) +
                         " bytes of parameters cannot be mapped: " + errno_text(errno));
      }
      const std::int64_t numel = units_[i].numel();
      const auto keep = [unit](void*) {};  // as long as a view lives
      flats_.push_back(
          pager::guarded(at::from_blob(unit->reading->begin(), {numel}, keep, units_[i].dtype),
                         labels[i],
                         permit_));
      writable_.push_back(at::from_blob(unit->writing, {numel}, keep, units_[i].dtype));
      offset += static_cast<off_t>(unit->bytes);
      memory_.push_back(std::move(unit));
    }
    return {};
  }

  void take_in(std::vector<NamedParameter>& parameters) override {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      place_parameters(units_[unit], flats_[unit], parameters);
  }
  [[nodiscard]] at::Tensor own_shard(std::size_t unit) const override {
    const std::int64_t numel = units_[unit].shard_numel;
    return writable_.at(unit).narrow(0, group_->rank() * numel, numel);
  }
  [[nodiscard]] bool is_shared() const noexcept override { return true; }

  void before_write() override { group_->barrier("waiting for the ends of all backwards"); }
  void publish(std::span<const std::size_t>) override {
    group_->barrier("waiting for the steps of all optimizers");
  }

  void begin_load() override {
    set_access(pager::GuardRange::Access::kReadWrite);
    permit_->give();
  }
  void end_load() override {
    permit_->withdraw();
    set_access(pager::GuardRange::Access::kRead);
  }

 private:
  // This rank's part of a unit, but for the padding behind its last parameter, which nobody touches.
  Result<void> reserve(int memory, off_t offset, std::size_t unit) const {
    const Unit& of = units_[unit];
    const auto begin = offset + static_cast<off_t>(of.bytes_of(group_->rank() * of.shard_numel));
    const auto bytes = static_cast<off_t>(of.bytes_of(used_numel(of, group_->rank())));
    if (bytes == 0 || ::fallocate(memory, 0, begin, bytes) == 0 || errno == EOPNOTSUPP) return {};
    return Error(
        ErrorCode::kOutOfMemory,
        std::to_string(bytes) + " bytes of parameters cannot be reserved: " + errno_text(errno));
  }

  void set_access(pager::GuardRange::Access access) {
    for (const auto& unit : memory_) unit->reading->set_access(unit->bytes, access);
  }

  std::vector<Unit> units_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<std::shared_ptr<UnitMemory>> memory_;
  std::shared_ptr<pager::WritePermit> permit_ = make_shared_permit();  // of the views to be read
  std::vector<at::Tensor> flats_;
  std::vector<at::Tensor> writable_;
};

Error cannot_share_parameters(const std::string& why) {
  return Error(ErrorCode::kUnsupported, "the ranks cannot share memory: " + why);
}

Result<UniqueFd> open_memory(const std::string& said_by_rank_0) {
  const auto offer = offer_of(said_by_rank_0);
  if (!offer) return offer.error();
  return shm::open_offer(*offer);
}

}  // namespace

Result<std::unique_ptr<ParameterHome>> make_shared_home(
    const std::vector<Unit>& units,
    std::vector<std::vector<pager::GuardLabel>> labels,
    std::shared_ptr<ProcessGroup> group) {
  std::int64_t bytes = 0;
  for (const Unit& unit : units) bytes += static_cast<std::int64_t>(whole_pages(unit.bytes()));
  const Result<UniqueFd> memory = group->rank() == 0 ? make_parameter_memory(bytes) : UniqueFd();
  const auto said =
      tell_all(memory ? node_offer(memory->get()) : Result<std::string>(memory.error()), *group);
  if (!said) return cannot_share_parameters(said.error().message());
  if (const auto rank = rank_elsewhere(*said))
    return cannot_share_parameters("rank " + std::to_string(*rank) +
                                   " is on another node than rank 0");
  auto home = std::make_unique<SharedHome>(units, group);
  const auto join = [&]() -> Result<std::string> {
    auto opened = *memory ? Result<UniqueFd>(UniqueFd()) : open_memory(said->front());
    if (!opened) return std::move(opened).error();
    const auto mapped = home->map((*memory ? *memory : *opened).get(), labels);
    if (!mapped) return mapped.error();
    return std::string();
  };
  if (const auto outcomes = tell_all(join(), *group); !outcomes)
    return cannot_share_parameters(outcomes.error().message());
  return std::unique_ptr<ParameterHome>(std::move(home));
}

}  // namespace accel::sharding
