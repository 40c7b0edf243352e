#include "libaccel/exported/compiled_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <accel/logging.h>
#include <accel/state.h>

#include "libaccel/exported/constants.h"
#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

// Half of the digits of a dtype.
double half_digits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::sqrt(std::numeric_limits<double>::epsilon());
    case at::kHalf:
      return std::sqrt(std::ldexp(1.0, -10));
    case at::kBFloat16:
      return std::sqrt(std::ldexp(1.0, -7));
    default:
      return std::sqrt(static_cast<double>(std::numeric_limits<float>::epsilon()));
  }
}

double largest_finite(const at::Tensor& tensor) {
  const at::Tensor finite = at::where(at::isfinite(tensor), tensor, at::zeros_like(tensor)).abs();
  return finite.numel() == 0 ? 0.0 : finite.max().item<double>();
}

// The caller's tensors may be copies when the code gets them: what it writes there would be lost.
void check_writes(const ExportedGraph& graph, const std::string& source) {
  std::set<ValueId> users;
  for (const InputSpec& input : graph.inputs)
    if (input.kind == InputSpec::Kind::kUser) users.insert(input.id);
  for (const Node& node : graph.graph.nodes) {
    const std::string name = node.target.substr(0, node.target.rfind('.'));
    if (!name.ends_with('_') || node.inputs.empty()) continue;
    const auto* value = std::get_if<ValueArgument>(&node.inputs.front().value);
    if (value != nullptr && users.contains(value->id))
      throw code_cannot(source, "its graph writes its input " + graph.graph.values[value->id]);
  }
}

InputSpec::Kind kind_of_word(const std::string& word) {
  if (word == "parameter") return InputSpec::Kind::kParameter;
  if (word == "buffer") return InputSpec::Kind::kBuffer;
  if (word == "constant") return InputSpec::Kind::kConstant;
  return InputSpec::Kind::kUser;
}

}  // namespace

Error code_cannot(const std::string& source, const std::string& why) {
  return Error(ErrorCode::kUnsupported,
               "the compiled code of " + printable(source) + " is not run: " + why,
               "give what it was compiled for, or take CompiledUse::kWherePossible");
}

void say_of_code(const std::string& text) {
  static std::mutex mutex;
  static auto& said =
      *new std::set<std::string>;  // NOLINT: programs may end while a thread says something
  {
    const std::lock_guard lock(mutex);
    if (!said.insert(text).second) return;
  }
  if (PartialState::initialized()) {
    get_logger("accel.exported").warning(text);
  } else {
    TORCH_WARN(text);
  }
}

std::string difference_of(const at::Tensor& found, const at::Tensor& expected, double slack) {
  if (found.defined() != expected.defined()) return "is None on one side alone";
  if (!found.defined()) return "";
  std::ostringstream text;
  if (found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type()) {
    text << "is " << c10::toString(found.scalar_type()) << found.sizes() << " instead of "
         << c10::toString(expected.scalar_type()) << expected.sizes();
    return text.str();
  }
  if (!expected.is_floating_point() || expected.numel() == 0) return "";
  const at::Tensor left = found.detach().to(at::kDouble);
  const at::Tensor right = expected.detach().to(at::kDouble);
  const double largest = largest_finite(right);
  const double most = half_digits(expected.scalar_type()) * largest + slack;
  if (at::allclose(left, right, /*rtol=*/0.0, /*atol=*/most, /*equal_nan=*/true)) return "";
  const bool same_special = at::equal(at::isfinite(left), at::isfinite(right));
  text << "differs by "
       << (same_special ? largest_finite(left - right) : std::numeric_limits<double>::infinity())
       << " where the largest value is " << largest;
  return text.str();
}

CompiledInputs::CompiledInputs(const CompiledPackage& package,
                               const ExportedGraph& graph,
                               const std::string& source) {
  check_writes(graph, source);
  std::size_t num_users = 0;
  std::map<std::pair<InputSpec::Kind, std::string>, Input> known;
  for (const InputSpec& input : graph.inputs) {
    if (input.kind == InputSpec::Kind::kFixed) continue;
    const auto shape = graph.graph.input_shapes.find(input.id);
    const auto dtype = shape == graph.graph.input_shapes.end()
                           ? std::nullopt
                           : scalar_type_of(shape->second.dtype);
    if (!dtype) throw code_cannot(source, "its input " + printable(input.target) + " is no tensor");
    Input made{.kind = input.kind, .name = input.target, .dtype = *dtype};
    const bool is_user = input.kind == InputSpec::Kind::kUser;
    if (is_user) made.user = num_users++;
    known.emplace(std::pair(input.kind, is_user ? std::to_string(made.user) : input.target),
                  std::move(made));
  }
  for (const auto& [word, name] : package.inputs()) {
    const auto found = known.find({kind_of_word(word), name});
    if (found == known.end())
      throw damaged_export("its compiled code takes " + printable(word + " " + name) +
                           ", which its graph has not");
    inputs_.push_back(found->second);
  }
}

void CompiledInputs::bind(const std::map<std::string, TensorPlace>& places,
                          const TensorsByName& constants) {
  for (Input& input : inputs_) {
    if (input.kind == InputSpec::Kind::kConstant)
      input.constant = constants.at(input.name).contiguous();
    else if (input.kind != InputSpec::Kind::kUser)
      input.place = places.at(input.name);
  }
}

std::string CompiledInputs::gather(const std::vector<c10::IValue>& users,
                                   CompiledArguments& arguments) const {
  if (at::autocast::is_autocast_enabled(at::kCPU)) return "autocast is on";
  std::vector<std::int64_t> written_order;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    const bool is_user = input.kind == InputSpec::Kind::kUser;
    const bool is_buffer = input.kind == InputSpec::Kind::kBuffer;
    at::Tensor tensor = is_user       ? users[input.user].toTensor()
                        : input.place ? input.place->tensor()
                                      : input.constant;
    const auto named = [&] { return "'" + printable(input.name) + "'"; };
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided)
      return named() + " is not a plain tensor on the CPU";
    if (tensor.scalar_type() != input.dtype) {
      // Integers are widened, which changes none; other dtypes mean other arithmetic.
      const bool can_widen = is_user && input.dtype == at::kLong &&
                             c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
      if (!can_widen)
        return named() + " is " + c10::toString(tensor.scalar_type()) +
               ", and it was compiled for " + c10::toString(input.dtype);
      tensor = tensor.to(input.dtype);
    }
    if (!tensor.is_contiguous()) {
      if (is_buffer) return named() + " is not contiguous";
      tensor = tensor.contiguous();
    }
    (is_buffer ? written_order : arguments.order).push_back(static_cast<std::int64_t>(i));
    (is_buffer ? arguments.written : arguments.read).push_back(std::move(tensor));
  }
  arguments.order.insert(arguments.order.end(), written_order.begin(), written_order.end());
  return "";
}

}  // namespace accel::exported
