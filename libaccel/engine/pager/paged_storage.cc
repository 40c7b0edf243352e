#include "libaccel/engine/pager/paged_storage.h"

#include <memory>
#include <string>
#include <utility>

namespace accel::pager {
namespace {

void unpin(void* table, std::size_t unit) noexcept {
  static_cast<PageTable*>(table)->unpin(unit);
}

void pin(interception::OperatorRun& run, PageTable& table, std::size_t unit) {
  std::size_t held_bytes = 0;
  for (const auto& held : run.held()) {
    if (held.owner != &table) continue;
    if (held.unit == unit) return;
    held_bytes += table.bytes_of(held.unit);
  }
  table.pin(unit, held_bytes);
  // Alive as long as the argument is.
  run.hold({.owner = &table, .unit = unit, .release = &unpin});
}

// What guarded() has made.
class GuardedStorage final : public interception::ParameterStorage {
 public:
  GuardedStorage(at::Storage memory,
                 std::vector<GuardLabel> labels,
                 std::shared_ptr<const WritePermit> permit)
      : memory_(std::move(memory)), labels_(std::move(labels)), permit_(std::move(permit)) {}

  void before(interception::OperatorRun& run,
              const c10::TensorImpl& tensor,
              bool is_written) const override {
    if (is_written && !permit_->is_given()) throw permit_->refusal(run.name(), name_of(tensor));
  }

  [[nodiscard]] std::string name_of(const c10::TensorImpl& tensor) const override {
    const std::size_t at = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
    for (const GuardLabel& label : labels_)
      if (at >= label.offset && at - label.offset < label.bytes) return label.name;
    return "behind " + labels_.back().name;
  }

 private:
  at::Storage memory_;
  std::vector<GuardLabel> labels_;
  std::shared_ptr<const WritePermit> permit_;
};

at::DataPtr page_pointer(std::shared_ptr<PageTable> table, std::size_t parameter) {
  std::byte* const address = table->address_of(parameter);
  return interception::owned_pointer(address,
                                     std::make_unique<PagedStorage>(std::move(table), parameter));
}

}  // namespace

PagedStorage::PagedStorage(std::shared_ptr<PageTable> pages, std::size_t index)
    : table(std::move(pages)), parameter(index), place(table->layout().places[index]) {}

void PagedStorage::before(interception::OperatorRun& run,
                          const c10::TensorImpl& tensor,
                          bool is_written) const {
  const WritePermit* const permit = is_written ? table->write_permit() : nullptr;
  if (permit != nullptr && !permit->is_given()) throw permit->refusal(run.name(), name_of(tensor));
  table->note_first_use(parameter);
  pin(run, *table, place.unit);
  if (is_written) table->mark_written(place.unit, place.slot);
}

std::string PagedStorage::name_of(const c10::TensorImpl&) const {
  return table->layout().parameters[parameter].name;
}

at::Storage make_paged_storage(std::shared_ptr<PageTable> table, std::size_t parameter) {
  const UnitLayout& layout = table->layout();
  const Unit& unit = layout.units[layout.places[parameter].unit];
  const std::size_t bytes = unit.bytes_of(layout.parameters[parameter].numel);
  return at::Storage(at::Storage::use_byte_size_t(),
                     bytes,
                     page_pointer(std::move(table), parameter),
                     /*allocator=*/nullptr,
                     /*resizable=*/false);
}

void move_to_pages(const at::Tensor& tensor,
                   std::shared_ptr<PageTable> table,
                   std::size_t parameter) {
  tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      page_pointer(std::move(table), parameter));
}

void put_on_pages(at::Tensor& tensor,
                  const at::Storage& storage,
                  at::ScalarType dtype,
                  std::int64_t storage_offset) {
  tensor.set_data(interception::make_owned(tensor, storage, dtype, storage_offset));
}

at::Tensor guarded(const at::Tensor& values,
                   std::vector<GuardLabel> labels,
                   std::shared_ptr<const WritePermit> permit) {
  const at::Storage& memory = values.storage();
  at::Storage storage(at::Storage::use_byte_size_t(),
                      memory.nbytes(),
                      interception::owned_pointer(memory.mutable_data(),
                                                  std::make_unique<GuardedStorage>(
                                                      memory, std::move(labels), std::move(permit)),
                                                  values.device()),
                      /*allocator=*/nullptr,
                      /*resizable=*/false);
  return interception::make_owned(
      values, std::move(storage), values.scalar_type(), values.storage_offset());
}

void take_off_pages(at::Tensor& tensor, const at::Tensor& values) {
  tensor.set_data(values);
}

const PagedStorage* paged_storage(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return nullptr;
  return dynamic_cast<const PagedStorage*>(interception::owner_of(*tensor.unsafeGetTensorImpl()));
}

at::Tensor with_memory(const at::Tensor& tensor) {
  return paged_storage(tensor) == nullptr ? tensor : tensor.clone();
}

}  // namespace accel::pager
