#include "libaccel/engine/homes/parameter_claim.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>

#include <accel/error.h>

namespace accel::sharding {
namespace {

using WeakTensors = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>;

struct Claims {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, const ParameterClaim*> parameters;  // and who has them
  // Of claims that are gone.
  WeakTensors former_parameters;
  WeakTensors former_pieces;
};

// Those that are left of `from`, behind those that are left of `to`.
void append_living(WeakTensors from, WeakTensors& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  std::erase_if(to, [](const auto& tensor) { return tensor.expired(); });
}

bool contains(const WeakTensors& tensors, const at::Tensor& wanted) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return !tensor.expired() && tensor._unsafe_get_target() == wanted.unsafeGetTensorImpl();
  });
}

Claims& claims() {
  static auto* all = new Claims;  // NOLINT: models may end after everything static
  return *all;
}

Error divided_before(const std::string& name) {
  return Error(ErrorCode::kUnsupported,
               "the parameter " + name +
                   " is divided already, by a prepared model that is still there",
               "before the module is prepared again, call free_memory() and let go of the model "
               "and the optimizer that prepare() returned")
      .while_doing("preparing the model");
}

Error shared_elsewhere(const std::string& name) {
  return Error(ErrorCode::kUnsupported,
               "the parameter " + name +
                   " is divided already, by another prepared model that shares it",
               "prepare both as one module that has them as submodules; if the other one is not "
               "used any more, call free_memory() and let go of what prepare() returned for it")
      .while_doing("preparing the model");
}

}  // namespace

ParameterClaim::ParameterClaim(const std::vector<NamedParameter>& parameters) {
  const std::scoped_lock lock(claims().mutex);
  const auto holder_of = [](const NamedParameter& parameter) -> const ParameterClaim* {
    const auto found = claims().parameters.find(parameter.tensor.unsafeGetTensorImpl());
    return found == claims().parameters.end() ? nullptr : found->second;
  };
  for (const NamedParameter& parameter : parameters) {
    const ParameterClaim* const holder = holder_of(parameter);
    if (holder == nullptr) continue;
    const bool has_the_same =
        holder->parameters_.size() == parameters.size() &&
        std::all_of(parameters.begin(), parameters.end(), [&](const NamedParameter& other) {
          return holder_of(other) == holder;
        });
    throw has_the_same ? divided_before(parameter.name) : shared_elsewhere(parameter.name);
  }
  for (const NamedParameter& parameter : parameters) {
    parameters_.emplace_back(parameter.tensor.getIntrusivePtr());
    claims().parameters.emplace(parameter.tensor.unsafeGetTensorImpl(), this);
  }
}

ParameterClaim::~ParameterClaim() {
  const std::scoped_lock lock(claims().mutex);
  for (const auto& parameter : parameters_)
    claims().parameters.erase(parameter._unsafe_get_target());
  if (!is_divided_) return;
  append_living(std::move(parameters_), claims().former_parameters);
  append_living(std::move(pieces_), claims().former_pieces);
}

void ParameterClaim::add_piece(const at::Tensor& piece) {
  pieces_.emplace_back(piece.getIntrusivePtr());
}

bool ParameterClaim::is_left_over(const at::Tensor& tensor) {
  const std::scoped_lock lock(claims().mutex);
  return contains(claims().former_pieces, tensor);
}

bool ParameterClaim::was_divided(const at::Tensor& tensor) {
  const std::scoped_lock lock(claims().mutex);
  return contains(claims().former_parameters, tensor);
}

}  // namespace accel::sharding
