// Names are looked up once: a set of schemas, which live as long as their operators, is what each operator of a region is asked for.

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>

namespace accel {
namespace {

// Of torch/_functorch/partitioners.py, as far as LibTorch has them: where one is not built in, it is left out.
constexpr const char* kComputeIntensive[] = {
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::_int_mm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::convolution",
    "aten::mkldnn_rnn_layer",
    "aten::_cudnn_rnn",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
};

bool makes_something_new(const c10::FunctionSchema& schema) {
  const auto is_alias = [](const c10::Argument& one) { return one.alias_info() != nullptr; };
  const auto is_written = [](const c10::Argument& one) {
    return one.alias_info() != nullptr && one.alias_info()->isWrite();
  };
  return !schema.returns().empty() &&
         std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), is_alias);
}

std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& one : c10::Dispatcher::singleton().getAllOpNames()) {
    if (one.name != name && one.name + "." + one.overload_name != name) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(one)) found.push_back(*op);
  }
  return found;
}

[[noreturn]] void refuse_to_keep(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              "results of '" + name + "' cannot be kept: " + why,
              "name operators that have kernels, as \"aten::mm\" or \"aten::convolution\"; "
              "KeptOperators::compute_intensive() has the usual ones");
}

void add_overloads(std::unordered_set<const c10::FunctionSchema*>& all, const std::string& name) {
  const std::vector<c10::OperatorHandle> overloads = overloads_of(name);
  if (overloads.empty()) refuse_to_keep(name, "there is no such operator");
  bool has_any = false;
  bool is_composite = false;
  for (const c10::OperatorHandle& op : overloads) {
    if (!makes_something_new(op.schema())) continue;
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      is_composite = true;
      continue;
    }
    all.insert(&op.schema());
    has_any = true;
  }
  if (has_any) return;
  refuse_to_keep(name,
                 is_composite ? "it is made of other operators, which run in its place"
                              : "it writes to its arguments, or gives views of them");
}

}  // namespace

struct KeptOperators::Schemas {
  std::unordered_set<const c10::FunctionSchema*> all;
};

KeptOperators::KeptOperators(const std::vector<std::string>& names) {
  auto schemas = std::make_shared<Schemas>();
  for (const std::string& name : names) add_overloads(schemas->all, name);
  schemas_ = std::move(schemas);
}

const KeptOperators& KeptOperators::compute_intensive() {
  static const KeptOperators all = [] {
    std::vector<std::string> names;
    std::copy_if(std::begin(kComputeIntensive),
                 std::end(kComputeIntensive),
                 std::back_inserter(names),
                 [](const std::string& name) { return !overloads_of(name).empty(); });
    return KeptOperators(names);
  }();
  return all;
}

bool KeptOperators::contains(const c10::OperatorHandle& op) const {
  return schemas_->all.contains(&op.schema());
}

}  // namespace accel
