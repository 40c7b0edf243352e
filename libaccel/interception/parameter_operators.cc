#include "libaccel/interception/parameter_operators.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <tuple>
#include <type_traits>
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
#include <torch/library.h>

#include <accel/error.h>

#include "libaccel/interception/kernel_scope.h"
#include "libaccel/interception/operator_hook.h"

namespace accel::interception {
namespace {

constexpr auto kParameterKey = c10::DispatchKey::Fake;

// What was seen on this thread. Read from a handler of signals: the static model, because the dynamic one may allocate on a
// thread's first look. It makes all that libaccel.so has local to threads static, and dlopen() has room for some hundred bytes.
struct OperatorsSeen {
  const char* last = nullptr;
  std::uint64_t count = 0;
};
[[gnu::tls_model("initial-exec")]] thread_local constinit OperatorsSeen t_seen;

void delete_owner(void* owner) {
  delete static_cast<ParameterStorage*>(owner);
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

c10::DispatchKeySet keys_below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParameterKey);
}

void announce_to_owner(OperatorRun& run, const c10::TensorImpl& tensor, bool is_written) {
  if (const ParameterStorage* const owner = owner_of(tensor))
    owner->before(run, tensor, is_written);
}

void announce(OperatorRun& run, const c10::IValue& value, bool is_written) {
  if (value.isTensor()) announce_to_owner(run, *value.unsafeToTensorImpl(), is_written);
}

void announce_all(OperatorRun& run, c10::ArrayRef<c10::IValue> values, bool is_written) {
  for (const c10::IValue& value : values) {
    if (!value.isTensor() && !value.isNone()) return;  // a list of numbers
    announce(run, value, is_written);
  }
}

// Whether the handler of a scope has run it.
bool ask_handler(const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  KernelHandler* const handler = kernel_handler();
  return handler != nullptr && handler->run(op, keys_below(keys), stack);
}

void announce_and_go_on(const c10::OperatorHandle& op,
                        c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  if (!ask_handler(op, keys, stack)) run_kernel(op, keys_below(keys), stack);
}

// The same for the operators that training calls most, with their own types: boxing their arguments would be most of
// the cost. A reference to a tensor that is not const is written to.
void announce(OperatorRun& run, const at::Tensor& tensor) {
  announce_to_owner(run, *tensor.unsafeGetTensorImpl(), /*is_written=*/false);
}
void announce(OperatorRun& run, at::Tensor& tensor) {
  announce_to_owner(run, *tensor.unsafeGetTensorImpl(), /*is_written=*/true);
}
void announce(OperatorRun& run, const std::optional<at::Tensor>& tensor) {
  if (tensor) announce(run, *tensor);
}
template <typename Number>
void announce(OperatorRun&, const Number&) {}

template <typename Operator, typename Schema>
struct Typed;
template <typename Operator, typename Result, typename... Arguments>
struct Typed<Operator, Result(Arguments...)> {
  static Result announce_and_go_on(c10::DispatchKeySet keys, Arguments... arguments) {
    if (kernel_handler() != nullptr) {
      static const c10::OperatorHandle op =
          c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
      torch::jit::Stack stack = c10::impl::boxArgs<Arguments...>(arguments...);
      if (ask_handler(op, keys, &stack)) return result_of(stack, arguments...);
    }
    OperatorRun run(Operator::name);
    (announce(run, arguments), ...);
    return Operator::redispatch(keys_below(keys), std::forward<Arguments>(arguments)...);
  }

 private:
  static Result result_of(torch::jit::Stack& stack, Arguments... arguments) {
    if constexpr (std::is_reference_v<Result>)  // an operator in place: its first argument
      return std::get<0>(std::tie(arguments...));
    else
      return c10::impl::PopResult<Result>::call(stack);
  }
};

template <typename... Operators>
void register_typed(torch::Library& aten) {
  const auto name_of = [](const std::string& name, const std::string& overload) {
    return overload.empty() ? name : name + "." + overload;
  };
  (aten.impl(name_of(Operators::name, Operators::overload_name).c_str(),
             &Typed<Operators, typename Operators::schema>::announce_and_go_on),
   ...);
}

void refuse_operator(const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (ask_handler(op, keys, stack)) return;
  std::string name;
  bool is_parameter = false;  // otherwise the thread has the key, for a scope
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!argument.isTensor()) continue;
    const c10::TensorImpl& tensor = *argument.unsafeToTensorImpl();
    is_parameter = is_parameter || tensor.key_set().has(kParameterKey);
    if (const ParameterStorage* const owner = owner_of(tensor)) name = owner->name_of(tensor);
  }
  if (!is_parameter) {
    op.redispatchBoxed(keys_below(keys), stack);
    return;
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

}  // namespace

void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::uint64_t written = remembered_writes(schema);
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  OperatorRun run(op.operator_name().name.c_str());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = (written >> std::min(i, kMostArguments - 1) & 1) != 0;
    const c10::IValue& argument = arguments[i];
    if (argument.isList())
      announce_all(run, argument.toListRef(), is_written);
    else
      announce(run, argument, is_written);
  }
  op.redispatchBoxed(keys, stack);
}

// When the first parameter gets the key.
void hook_operators_below_autograd() {
  static const bool is_registered = [] {
    hook_operators("_", kParameterKey)
        .fallback(torch::CppFunction::makeFromBoxedFunction<&announce_and_go_on>());
    torch::Library& aten = hook_operators("aten", kParameterKey);
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

OperatorRun::OperatorRun(const char* name) noexcept : name_(name) {
  t_seen.last = name;
  ++t_seen.count;
}

at::DataPtr owned_pointer(void* address,
                          std::unique_ptr<ParameterStorage> owner,
                          c10::Device device) {
  return {address, owner.release(), &delete_owner, device};
}

void move_owned(c10::StorageImpl& storage, void* address) {
  at::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  const c10::Device device = pointer.device();
  void* const owner = pointer.release_context();
  pointer = at::DataPtr(address, owner, &delete_owner, device);
}

at::Tensor make_owned(const at::Tensor& like,
                      at::Storage storage,
                      at::ScalarType dtype,
                      std::int64_t storage_offset) {
  hook_operators_below_autograd();
  return make_with_key(like, kParameterKey, std::move(storage), dtype, storage_offset);
}

const ParameterStorage* owner_of(const c10::TensorImpl& tensor) noexcept {
  if (!tensor.key_set().has(kParameterKey) || !tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = tensor.unsafe_storage().data_ptr();
  if (pointer.get_deleter() != &delete_owner) return nullptr;
  return static_cast<const ParameterStorage*>(pointer.get_context());
}

const char* last_operator() noexcept {
  return t_seen.last;
}

std::uint64_t num_hooked_operators() noexcept {
  return t_seen.count;
}

}  // namespace accel::interception
