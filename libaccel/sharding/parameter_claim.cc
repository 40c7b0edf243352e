#include "libaccel/sharding/parameter_claim.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_set>

#include <accel/error.h>

namespace accel::sharding {
namespace {

using Tensors = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>;

struct Claims {
  std::mutex mutex;
  std::unordered_set<const c10::TensorImpl*> parameters;
  // Of claims that are gone.
  Tensors former_parameters;
  Tensors former_pieces;
};

// Those that are left of `from`, behind those that are left of `to`.
void append(Tensors from, Tensors& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  std::erase_if(to, [](const auto& tensor) { return tensor.expired(); });
}

bool contains(const Tensors& tensors, const at::Tensor& wanted) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return !tensor.expired() && tensor._unsafe_get_target() == wanted.unsafeGetTensorImpl();
  });
}

Claims& claims() {
  static auto* all = new Claims;  // NOLINT: models may end after everything static
  return *all;
}

}  // namespace

ParameterClaim::ParameterClaim(const std::vector<NamedParameter>& parameters) {
  const std::scoped_lock lock(claims().mutex);
  for (const NamedParameter& parameter : parameters) {
    if (claims().parameters.contains(parameter.tensor.unsafeGetTensorImpl()))
      throw Error(
          ErrorCode::kUnsupported,
          "the parameter " + parameter.name +
              " is divided already, by a prepared model that is still there",
          "before the module is prepared again, call free_memory() and let go of the model and "
          "the optimizer that prepare() returned")
          .while_doing("preparing the model");
  }
  for (const NamedParameter& parameter : parameters) {
    parameters_.emplace_back(parameter.tensor.getIntrusivePtr());
    claims().parameters.insert(parameter.tensor.unsafeGetTensorImpl());
  }
}

ParameterClaim::~ParameterClaim() {
  const std::scoped_lock lock(claims().mutex);
  for (const auto& parameter : parameters_)
    claims().parameters.erase(parameter._unsafe_get_target());
  if (!is_divided_) return;
  append(std::move(parameters_), claims().former_parameters);
  append(std::move(pieces_), claims().former_pieces);
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
