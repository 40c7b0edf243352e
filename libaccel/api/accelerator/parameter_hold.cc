#include <optional>

#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/with_params.h>

#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/pager/pager.h"
#include "runtime/suggest.h"

namespace accel::detail {
namespace {

std::vector<at::Tensor> parameters_called(const torch::nn::Module& module,
                                          const std::vector<std::string>& names) {
  if (names.empty()) return module.parameters();
  const auto parameters = module.named_parameters();
  std::vector<at::Tensor> found;
  std::string unknown;
  for (const std::string& name : names) {
    if (const at::Tensor* parameter = parameters.find(name)) {
      found.push_back(*parameter);
      continue;
    }
    const std::optional<std::string> guess = nearest(name, parameters.keys());
    unknown += (unknown.empty() ? "'" : ", '") + name + "'" +
               (guess ? " (did you mean '" + *guess + "'?)" : "");
  }
  if (unknown.empty()) return found;
  throw Error(ErrorCode::kInvalidArgument,
              "with_params() names " + unknown + ", which no parameter of the model is called",
              "name parameters as named_parameters() does");
}

}  // namespace

std::shared_ptr<void> hold_parameters(ModelRuntime& runtime,
                                      const std::vector<std::string>& names) {
  return pager::hold_pages(parameters_called(*runtime.module(), names));
}

}  // namespace accel::detail
