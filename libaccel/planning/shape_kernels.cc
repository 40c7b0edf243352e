#include "libaccel/planning/shape_kernels.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>

#include <accel/error.h>

#include "libaccel/planning/kernel_memory.h"
#include "libaccel/planning/operator_flops.h"

namespace accel::planning {
namespace {

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is_written);
}

bool makes_view(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& one) {
           return one.alias_info() != nullptr && !one.alias_info()->isWrite();
         });
}

// Made of other operators, on the CPU too.
bool is_composite(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
}

// LibTorch's fallback for the device only throws.
bool has_meta_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Calls visit(tensor) for all that are defined.
template <typename Visit>
void visit_defined(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isNone()) return;  // a list of numbers
      visit_defined(item, visit);
    }
  }
}

bool has_values(Arguments arguments) {
  bool all = true;
  for (const c10::IValue& argument : arguments)
    visit_defined(argument, [&](const at::Tensor& tensor) {
      all = all && !has_no_values(*tensor.unsafeGetTensorImpl());
    });
  return all;
}

// Of elements: what is expanded is read so often.
double touched_bytes(Arguments values) {
  double bytes = 0;
  for (const c10::IValue& value : values)
    visit_defined(value,
                  [&](const at::Tensor& tensor) { bytes += static_cast<double>(tensor.nbytes()); });
  return bytes;
}

// That the kernel would give a size to.
bool has_unsized_output(const c10::FunctionSchema& schema, Arguments arguments) {
  bool is_unsized = false;
  bool reads_nothing = true;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    visit_defined(arguments[i], [&](const at::Tensor& tensor) {
      if (is_written(schema.arguments()[i]))
        is_unsized = is_unsized || tensor.numel() == 0;
      else
        reads_nothing = reads_nothing && tensor.numel() == 0 && tensor.dim() > 0;
    });
  }
  return is_unsized && !(reads_nothing && schema.arguments().size() > 1 && arguments[0].isTensor());
}

// What attention asks of its query and keys. Tensors on other memory count as different.
bool is_same_memory(const at::Tensor& left, const at::Tensor& right) {
  return left.is_alias_of(right) && left.storage_offset() == right.storage_offset() &&
         left.sizes().equals(right.sizes()) && left.strides().equals(right.strides());
}

[[noreturn]] void refuse_to_plan(const c10::OperatorHandle& op, const std::string& why) {
  throw Error(ErrorCode::kUnsupported,
              "a step cannot be planned without its values: " + full_name(op) + " " + why,
              "leave it out of the step that is planned, as in `if (!planning)`, or measure a run "
              "with accel::memory_use()");
}

constexpr std::array kReading = {"aten::_local_scalar_dense",
                                 "aten::nonzero",
                                 "aten::masked_select",
                                 "aten::_unique2",
                                 "aten::unique_dim",
                                 "aten::unique_consecutive",
                                 "aten::bincount"};

// ---- the same arguments on the device meta ----

class MetaTwins {
 public:
  c10::IValue of(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() ? twin(value.toTensor()) : value;
    if (value.isDevice()) return c10::Device(c10::kMeta);
    if (value.isOptionalTensorList() || value.isTensorList() || is_list_of_tensors(value))
      return list_of(value);
    return value;
  }

  // The tensor whose twin this is; undefined: it is a new one.
  [[nodiscard]] at::Tensor original(const at::Tensor& twin) const {
    for (const auto& [tensor, own] : pairs_)
      if (own.is_same(twin)) return tensor;
    return {};
  }

  [[nodiscard]] const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs() const {
    return pairs_;
  }

 private:
  static bool is_list_of_tensors(const c10::IValue& value) {
    if (!value.isList()) return false;
    const auto items = value.toListRef();
    return !items.empty() && (items[0].isTensor() || items[0].isNone());
  }

  at::Tensor twin(const at::Tensor& tensor) {
    if (tensor.is_meta()) return tensor;
    for (const auto& [one, own] : pairs_)
      if (one.is_same(tensor)) return own;
    at::Tensor made =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      made.unsafeGetTensorImpl()->set_wrapped_number(true);
    pairs_.emplace_back(tensor, made);
    return made;
  }

  c10::IValue list_of(const c10::IValue& value) {
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> twins;
      for (const c10::IValue& item : value.toListRef()) {
        const bool is_there = item.isTensor() && item.toTensor().defined();
        twins.push_back(is_there ? std::optional(twin(item.toTensor())) : std::nullopt);
      }
      return twins;
    }
    c10::List<at::Tensor> twins;
    for (const c10::IValue& item : value.toListRef())
      twins.push_back(item.toTensor().defined() ? twin(item.toTensor()) : at::Tensor());
    return twins;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void drop_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

// What an operator in place gives: the arguments that it writes to.
void return_written(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
  std::vector<c10::IValue> results;
  for (const c10::Argument& result : schema.returns()) {
    if (!is_written(result))
      refuse_to_plan(op, "writes to an argument and gives something new, too");
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
        results.push_back(arguments[i]);
        break;
      }
    }
  }
  drop_arguments(op, stack);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

std::size_t storage_bytes(const Shape& shape) {
  const std::size_t element = c10::elementSize(shape.dtype);
  return shape.strides.empty()
             ? at::detail::computeStorageNbytesContiguous(shape.sizes, element)
             : at::detail::computeStorageNbytes(shape.sizes, shape.strides, element);
}

}  // namespace

at::Tensor ShapeKernels::make(const Shape& shape) const {
  if (!shape.is_defined) return {};
  const std::size_t bytes =
      std::max(storage_bytes(shape), static_cast<std::size_t>(shape.least_bytes));
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       bytes,
                       ledger_->allocate(bytes),
                       /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                               c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               c10::scalarTypeToTypeMeta(shape.dtype));
  if (shape.strides.empty())
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape.sizes);
  else
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
  return tensor;
}

const ShapeKernels::Plan& ShapeKernels::plan_of(const c10::OperatorHandle& op) {
  const auto [found, is_new] = plans_.try_emplace(&op.schema());
  Plan& plan = found->second;
  if (!is_new) return plan;
  const std::string name = full_name(op);
  plan.flops = find_flop_count(name);
  plan.scratch = find_product_scratch(name);
  plan.moves = !name.starts_with("aten::empty") && !name.starts_with("aten::new_empty");
  plan.rule = find_size_rule(name);
  if (plan.rule != nullptr)
    plan.kind = Kind::kRule;
  else if (name == "aten::resize_")
    plan.kind = Kind::kResize;
  else if (makes_view(op.schema()) || op.hasTag(at::Tag::inplace_view))
    plan.kind = Kind::kKernel;
  else if (writes(op.schema()) && op.operator_name().overload_name.find("out") == std::string::npos)
    plan.kind = Kind::kInPlace;
  else if (is_composite(op))
    plan.kind = Kind::kKernel;
  return plan;
}

bool ShapeKernels::run(const c10::OperatorHandle& op,
                       c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (std::ranges::find(kReading, op.operator_name().name) != kReading.end()) {
    if (!has_values(arguments)) refuse_to_plan(op, "reads what a tensor holds");
    const interception::NoKernelScope plain;
    op.callBoxed(stack);
    return true;
  }
  if (op.operator_name().name == "aten::equal") {
    const bool is_equal = is_same_memory(arguments[0].toTensor(), arguments[1].toTensor());
    drop_arguments(op, stack);
    stack->emplace_back(is_equal);
    return true;
  }
  const Plan& plan = plan_of(op);
  if (plan.kind == Kind::kKernel || plan.kind == Kind::kResize || !plan.moves) {
    run_planned(op, keys, stack, plan);
    return true;
  }
  OperatorWork work{.bytes = touched_bytes(arguments)};
  if (plan.flops != nullptr) work.flops = plan.flops(arguments);
  const std::int64_t scratch = plan.scratch != nullptr ? plan.scratch(arguments) : 0;
  run_planned(op, keys, stack, plan);
  if (scratch > 0) ledger_->use_for_a_moment(scratch);
  work.bytes += touched_bytes(torch::jit::last(*stack, op.schema().returns().size()));
  if (work.flops > 0)
    products_.push_back(work);
  else
    other_bytes_ += work.bytes;
  return true;
}

void ShapeKernels::run_planned(const c10::OperatorHandle& op,
                               c10::DispatchKeySet keys,
                               torch::jit::Stack* stack,
                               const Plan& plan) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  switch (plan.kind) {
    case Kind::kRule: {
      const Sized sized = plan.rule(arguments);
      std::vector<c10::IValue> results;
      for (const Shape& shape : sized.results) results.emplace_back(make(shape));
      if (sized.scratch > 0) ledger_->use_for_a_moment(sized.scratch);
      drop_arguments(op, stack);
      for (c10::IValue& result : results) stack->push_back(std::move(result));
      break;
    }
    case Kind::kKernel:
      op.redispatchBoxed(keys, stack);
      break;
    case Kind::kInPlace:
      return_written(op, stack);
      break;
    case Kind::kResize: {
      const at::Tensor tensor = arguments[0].toTensor();
      resize(tensor, arguments[1].toIntVector());
      drop_arguments(op, stack);
      stack->emplace_back(tensor);
      break;
    }
    case Kind::kMeta:
      run_on_meta(op, stack);
      break;
  }
}

void ShapeKernels::run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  const c10::FunctionSchema& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  const interception::NoKernelScope plain;
  MetaTwins twins;
  torch::jit::Stack on_meta;
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice()) device = arguments[i].toDevice();
    // Of factories, which take no device for the CPU.
    const bool is_device = schema.arguments()[i].name() == "device";
    on_meta.push_back(is_device ? c10::IValue(c10::Device(c10::kMeta)) : twins.of(arguments[i]));
  }
  if (!has_meta_kernel(op)) {
    if (!writes(schema) || has_unsized_output(schema, arguments))
      refuse_to_plan(op, "has no rule that tells the sizes of its results");
    return_written(op, stack);  // with an out argument that its caller has sized
    return;
  }
  op.callBoxed(&on_meta);
  for (const auto& [tensor, twin] : twins.pairs())
    if (!twin.sizes().equals(tensor.sizes())) resize(tensor, twin.sizes());
  if (writes(schema)) {
    return_written(op, stack);
    return;
  }
  const bool stays_on_meta = device && device->is_meta();
  const auto real = [&](const at::Tensor& result) -> at::Tensor {
    if (!result.defined() || stays_on_meta) return result;
    if (const at::Tensor own = twins.original(result); own.defined()) return own;
    const at::Tensor made =
        make({result.sizes().vec(), result.scalar_type(), result.strides().vec()});
    return made;
  };
  drop_arguments(op, stack);
  for (const c10::IValue& result : on_meta) {
    if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : result.toTensorVector()) list.push_back(real(item));
      stack->emplace_back(std::move(list));
    } else if (result.isTensor()) {
      stack->emplace_back(real(result.toTensor()));
    } else {
      stack->push_back(result);
    }
  }
}

void ShapeKernels::resize(const at::Tensor& tensor, c10::IntArrayRef sizes) const {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const std::size_t bytes = storage_bytes({sizes.vec(), tensor.scalar_type()});
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage.nbytes()) {
    if (!has_no_values(impl) && storage.nbytes() > 0) return;  // the program's own: it stays
    storage.set_data_ptr_noswap(ledger_->allocate(bytes));
    storage.set_nbytes(bytes);
  }
  impl.set_sizes_contiguous(sizes);
}

}  // namespace accel::planning
