#include "libaccel/pager/parameter_key.h"

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <accel/error.h>

#include "libaccel/operator_hook.h"

namespace accel::pager {
namespace {

constexpr auto kPagingKey = c10::DispatchKey::Fake;

std::atomic<std::uint64_t> g_num_hooked{0};

void delete_paged_storage(void* context) {
  delete static_cast<PagedStorage*>(context);
}

const PagedStorage* paged_storage(const c10::TensorImpl& tensor) noexcept {
  if (!tensor.key_set().has(kPagingKey) || !tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = tensor.unsafe_storage().data_ptr();
  if (pointer.get_deleter() != &delete_paged_storage) return nullptr;
  return static_cast<const PagedStorage*>(pointer.get_context());
}

// What guarded() has made.
struct GuardedStorage {
  at::Storage memory;
  std::vector<GuardLabel> labels;
  std::shared_ptr<const WritePermit> permit;
};

void delete_guarded_storage(void* context) {
  delete static_cast<GuardedStorage*>(context);
}

const GuardedStorage* guarded_storage(const c10::TensorImpl& tensor) noexcept {
  if (!tensor.key_set().has(kPagingKey) || !tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = tensor.unsafe_storage().data_ptr();
  if (pointer.get_deleter() != &delete_guarded_storage) return nullptr;
  return static_cast<const GuardedStorage*>(pointer.get_context());
}

// Of the parameter at the tensor's first element.
std::string name_of(const GuardedStorage& storage, const c10::TensorImpl& tensor) {
  const std::size_t at = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  for (const GuardLabel& label : storage.labels)
    if (at >= label.offset && at - label.offset < label.bytes) return label.name;
  return "behind " + storage.labels.back().name;
}

void check_write(const c10::TensorImpl& tensor, const char* operation) {
  const GuardedStorage* const storage = guarded_storage(tensor);
  if (storage == nullptr || storage->permit->is_given()) return;
  throw storage->permit->refusal(operation, name_of(*storage, tensor));
}

// ---- which arguments an operator writes to ----

constexpr std::size_t kMostArguments = 64;

std::uint64_t written_arguments(const c10::FunctionSchema& schema) {
  std::uint64_t written = 0;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    // An operator with more arguments than bits counts as writing to all behind the last bit.
    if (alias != nullptr && alias->isWrite())
      written |= std::uint64_t{1} << std::min(i, kMostArguments - 1);
  }
  return written;
}

// The same, remembered: reading a schema takes longer than all else here. One table for all threads, whose entries stay
// for ever: what is local to a thread counts against the few bytes that a library loaded by dlopen() gets.
std::uint64_t remembered_writes(const c10::FunctionSchema& schema) {
  struct Entry {
    const c10::FunctionSchema* schema;
    std::uint64_t written;
  };
  constexpr std::size_t kMostLooks = 8;
  static constinit std::array<std::atomic<const Entry*>, 1024> entries{};
  const auto address = reinterpret_cast<std::uintptr_t>(&schema);
  const std::size_t first = address >> 4 ^ address >> 12;
  for (std::size_t look = 0; look < kMostLooks; ++look) {
    auto& place = entries[(first + look) % entries.size()];
    const Entry* entry = place.load(std::memory_order_acquire);
    if (entry == nullptr) {
      auto made = std::make_unique<const Entry>(Entry{&schema, written_arguments(schema)});
      // Another thread may have been faster, with another schema too.
      if (place.compare_exchange_strong(
              entry, made.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return made.release()->written;
      }
    }
    if (entry->schema == &schema) return entry->written;
  }
  return written_arguments(schema);
}

// ---- the fallback ----

// The units that one operator holds while it runs.
class OperatorPins {
 public:
  explicit OperatorPins(const char* operation) : operation_(operation) {
    g_num_hooked.fetch_add(1, std::memory_order_relaxed);
    note_operator(operation);
  }
  OperatorPins(const OperatorPins&) = delete;
  OperatorPins& operator=(const OperatorPins&) = delete;
  ~OperatorPins() {
    for (const Pin& pin : pins_) pin.table->unpin(pin.unit);
  }

  // Throws the permit's refusal.
  void add(const c10::TensorImpl& tensor, bool is_written) {
    if (const PagedStorage* const storage = paged_storage(tensor)) {
      add(*storage, is_written);
    } else if (is_written) {
      check_write(tensor, operation_);
    }
  }

 private:
  struct Pin {
    PageTable* table;  // alive as long as the argument is
    std::size_t unit;
  };

  void add(const PagedStorage& storage, bool is_written) {
    PageTable& table = *storage.table;
    const WritePermit* const permit = is_written ? table.write_permit() : nullptr;
    if (permit != nullptr && !permit->is_given())
      throw permit->refusal(operation_, table.layout().parameters[storage.parameter].name);
    table.note_first_use(storage.parameter);
    pin(table, storage.place.unit);
    if (is_written) table.mark_written(storage.place.unit, storage.place.slot);
  }

  void pin(PageTable& table, std::size_t unit) {
    std::size_t held_bytes = 0;
    for (const Pin& pin : pins_) {
      if (pin.table != &table) continue;
      if (pin.unit == unit) return;
      held_bytes += table.bytes_of(pin.unit);
    }
    table.pin(unit, held_bytes);
    pins_.push_back({&table, unit});
  }

  const char* operation_;
  c10::SmallVector<Pin, 8> pins_;
};

void add(OperatorPins& pins, const c10::IValue& value, bool is_written) {
  if (value.isTensor()) pins.add(*value.unsafeToTensorImpl(), is_written);
}

void add_all(OperatorPins& pins, c10::ArrayRef<c10::IValue> values, bool is_written) {
  for (const c10::IValue& value : values) {
    if (!value.isTensor() && !value.isNone()) return;  // a list of numbers
    add(pins, value, is_written);
  }
}

void page_in_and_go_on(const c10::OperatorHandle& op,
                       c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::uint64_t written = remembered_writes(schema);
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  OperatorPins pins(op.operator_name().name.c_str());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = (written >> std::min(i, kMostArguments - 1) & 1) != 0;
    const c10::IValue& argument = arguments[i];
    if (argument.isList())
      add_all(pins, argument.toListRef(), is_written);
    else
      add(pins, argument, is_written);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPagingKey),
                     stack);
}

// The same for the operators that training calls most, with their own types: boxing their arguments would be most of
// the cost. A reference to a tensor that is not const is written to.
void add(OperatorPins& pins, const at::Tensor& tensor) {
  pins.add(*tensor.unsafeGetTensorImpl(), /*is_written=*/false);
}
void add(OperatorPins& pins, at::Tensor& tensor) {
  pins.add(*tensor.unsafeGetTensorImpl(), /*is_written=*/true);
}
void add(OperatorPins& pins, const std::optional<at::Tensor>& tensor) {
  if (tensor) add(pins, *tensor);
}
template <typename Number>
void add(OperatorPins&, const Number&) {}

template <typename Operator, typename Schema>
struct Typed;
template <typename Operator, typename Result, typename... Arguments>
struct Typed<Operator, Result(Arguments...)> {
  static Result page_in_and_go_on(c10::DispatchKeySet keys, Arguments... arguments) {
    OperatorPins pins(Operator::name);
    (add(pins, arguments), ...);
    return Operator::redispatch(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPagingKey),
        std::forward<Arguments>(arguments)...);
  }
};

template <typename... Operators>
void register_typed(torch::Library& aten) {
  const auto name_of = [](const std::string& name, const std::string& overload) {
    return overload.empty() ? name : name + "." + overload;
  };
  (aten.impl(name_of(Operators::name, Operators::overload_name).c_str(),
             &Typed<Operators, typename Operators::schema>::page_in_and_go_on),
   ...);
}

void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  std::string name;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!argument.isTensor()) continue;
    const c10::TensorImpl& tensor = *argument.unsafeToTensorImpl();
    if (const auto* paged = paged_storage(tensor))
      name = paged->table->layout().parameters[paged->parameter].name;
    else if (const auto* shared = guarded_storage(tensor))
      name = name_of(*shared, tensor);
  }
  throw Error(ErrorCode::kUnsupported,
              op.operator_name().name + " on the parameter '" + name +
                  "' would give it other memory, where nobody would look for it",
              "load or change the parameter before it is paged or divided (before prepare()), or "
              "load it with load_state(); copy_() alone is for pages that may be written");
}

// Make views, look at sizes, or are made of other operators that come by themselves (contiguous, to). Views keep the key.
// clang-format off
constexpr const char* kFallthrough[] = {
    "alias", "as_strided", "chunk", "conj", "contiguous", "detach", "diagonal", "empty_like", "expand", "expand_as",
    "flatten.using_ints", "full_like", "is_complex", "is_conj", "is_floating_point", "is_neg", "is_same_size",
    "is_signed", "mT", "mH", "matrix_H", "movedim.int", "movedim.intlist", "narrow", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "numpy_T", "ones_like", "permute", "rand_like",
    "randn_like", "requires_grad_", "reshape", "resolve_conj", "resolve_neg", "result_type.Tensor", "select.int",
    "size.int", "slice.Tensor", "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims",
    "stride.int", "swapaxes", "swapdims", "sym_numel", "sym_size.int", "sym_stride.int", "t", "to.device",
    "to.dtype", "to.dtype_layout", "to.other", "transpose.int", "type_as", "unbind.int", "unflatten.int", "unfold",
    "unsqueeze", "view", "view.dtype", "view_as", "zeros_like", "_reshape_alias", "_unsafe_view",
};
// clang-format on
constexpr const char* kRefused[] = {
    "resize_",
    "resize_as_",
    "set_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "set_.source_Tensor_storage_offset",
};

// When the first parameter gets the key.
void hook_paging() {
  static const bool is_registered = [] {
    detail::hook_operators("_", kPagingKey)
        .fallback(torch::CppFunction::makeFromBoxedFunction<&page_in_and_go_on>());
    torch::Library& aten = detail::hook_operators("aten", kPagingKey);
    for (const char* name : kFallthrough) aten.impl(name, torch::CppFunction::makeFallthrough());
    register_typed<at::_ops::add__Tensor,
                   at::_ops::addcdiv_,
                   at::_ops::addcmul_,
                   at::_ops::addmm,
                   at::_ops::bmm,
                   at::_ops::convolution,
                   at::_ops::convolution_backward,
                   at::_ops::copy_,
                   at::_ops::embedding,
                   at::_ops::mm,
                   at::_ops::mul_Tensor,
                   at::_ops::mul__Tensor,
                   at::_ops::mul__Scalar,
                   at::_ops::native_layer_norm,
                   at::_ops::native_layer_norm_backward>(aten);
    for (const char* name : kRefused)
      aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_operator>());
    return true;
  }();
  (void)is_registered;
}

}  // namespace

namespace {

at::DataPtr page_pointer(std::shared_ptr<PageTable> table, std::size_t parameter) {
  const SlotPlace place = table->layout().places[parameter];
  std::byte* address = table->address_of(parameter);
  auto* context = new PagedStorage{std::move(table), parameter, place};
  return {address, context, &delete_paged_storage, at::kCPU};
}

}  // namespace

at::Storage make_paged_storage(std::shared_ptr<PageTable> table, std::size_t parameter) {
  const std::size_t bytes = table->layout().parameters[parameter].bytes;
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
  hook_paging();
  auto paged = at::detail::make_tensor<c10::TensorImpl>(
      at::Storage(storage), tensor.key_set().add(kPagingKey), c10::scalarTypeToTypeMeta(dtype));
  paged.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), storage_offset);
  tensor.set_data(paged);
}

at::Tensor guarded(const at::Tensor& values,
                   std::vector<GuardLabel> labels,
                   std::shared_ptr<const WritePermit> permit) {
  hook_paging();
  const at::Storage& memory = values.storage();
  const std::size_t bytes = memory.nbytes();
  void* const address = memory.mutable_data();
  auto* context = new GuardedStorage{memory, std::move(labels), std::move(permit)};
  at::Storage storage(at::Storage::use_byte_size_t(),
                      bytes,
                      at::DataPtr(address, context, &delete_guarded_storage, at::kCPU),
                      /*allocator=*/nullptr,
                      /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), values.key_set().add(kPagingKey), values.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      values.sizes(), values.strides(), values.storage_offset());
  return tensor;
}

void take_off_pages(at::Tensor& tensor, const at::Tensor& values) {
  tensor.set_data(values);
}

const PagedStorage* paged_storage(const at::Tensor& tensor) noexcept {
  return tensor.defined() ? paged_storage(*tensor.unsafeGetTensorImpl()) : nullptr;
}

at::Tensor with_memory(const at::Tensor& tensor) {
  return paged_storage(tensor) == nullptr ? tensor : tensor.clone();
}

std::uint64_t num_hooked_operators() noexcept {
  return g_num_hooked.load();
}

}  // namespace accel::pager
