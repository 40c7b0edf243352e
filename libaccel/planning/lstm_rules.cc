#include "libaccel/planning/lstm_rules.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "libaccel/interception/kernel_scope.h"
#include "libaccel/planning/kernel_memory.h"

namespace accel::planning {
namespace {

constexpr std::int64_t kGates = 4;
constexpr double kQuickFlops = 2e8;

// One direction of one layer.
struct LstmSizes {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
  std::int64_t inputs = 0;
  std::int64_t hidden = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_reverse = false;
  bool has_biases = false;

  auto operator<=>(const LstmSizes&) const = default;
};

double flops_of(const LstmSizes& lstm) {
  return 2.0 * static_cast<double>(lstm.steps * lstm.batch) *
         static_cast<double>(kGates * lstm.hidden * (lstm.inputs + lstm.hidden));
}

LstmSizes lstm_of(const at::Tensor& input, std::int64_t hidden) {
  return {.steps = input.size(0),
          .batch = input.size(1),
          .inputs = input.size(2),
          .hidden = hidden,
          .dtype = input.scalar_type()};
}

LstmSizes lstm_of_forward(Arguments arguments) {
  LstmSizes lstm = lstm_of(arguments[0].toTensor(), arguments[10].toInt());
  lstm.is_reverse = arguments[7].toBool();
  lstm.has_biases = arguments[12].toBool();
  return lstm;
}

LstmSizes lstm_of_backward(Arguments arguments) {
  LstmSizes lstm = lstm_of(arguments[0].toTensor(), arguments[15].toInt());
  lstm.is_reverse = arguments[13].toBool();
  lstm.has_biases = arguments[17].toBool();
  return lstm;
}

// Bytes.
struct LstmMemory {
  std::int64_t workspace = 0;
  std::int64_t forward = 0;  // beside results, while it runs
  std::int64_t backward = 0;
};

// The kernels of zeros.
class AskedLstm {
 public:
  explicit AskedLstm(const LstmSizes& lstm) : lstm_(lstm) {}

  [[nodiscard]] LstmMemory memory() {
    const interception::NoKernelScope plain;
    input_ = zeros({lstm_.steps, lstm_.batch, lstm_.inputs});
    for (const std::int64_t inputs : {lstm_.inputs, lstm_.hidden})
      weights_.push_back(zeros({kGates * lstm_.hidden, inputs}));
    for (int i = 0; i < 2; ++i) weights_.push_back(zeros({kGates * lstm_.hidden}));
    state_ = zeros({lstm_.batch, lstm_.hidden});
    LstmMemory memory;
    memory.forward = measured_scratch([&] { return results_ = forward(); });
    memory.workspace = static_cast<std::int64_t>(results_[3].nbytes());
    const at::Tensor gradient = at::zeros_like(results_[0]);
    memory.backward = measured_scratch([&] { return backward(gradient); });
    return memory;
  }

 private:
  // Of LibTorch's enumeration of recurrent layers.
  static constexpr std::int64_t kMode = 2;

  [[nodiscard]] at::Tensor zeros(at::IntArrayRef sizes) const {
    return at::zeros(sizes, lstm_.dtype);
  }

  [[nodiscard]] std::vector<at::Tensor> forward() const {
    const auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(input_,
                                                                        weights_[0],
                                                                        weights_[1],
                                                                        weights_[2],
                                                                        weights_[3],
                                                                        state_,
                                                                        state_,
                                                                        lstm_.is_reverse,
                                                                        /*batch_sizes=*/{},
                                                                        kMode,
                                                                        lstm_.hidden,
                                                                        /*num_layers=*/1,
                                                                        lstm_.has_biases,
                                                                        /*bidirectional=*/false,
                                                                        /*batch_first=*/false,
                                                                        /*train=*/true);
    return {output, hidden, cell, workspace};
  }

  [[nodiscard]] std::vector<at::Tensor> backward(const at::Tensor& gradient) const {
    const auto gradients = at::mkldnn_rnn_layer_backward(input_,
                                                         weights_[0],
                                                         weights_[1],
                                                         weights_[2],
                                                         weights_[3],
                                                         state_,
                                                         state_,
                                                         results_[0],
                                                         results_[1],
                                                         results_[2],
                                                         gradient,
                                                         std::nullopt,
                                                         std::nullopt,
                                                         lstm_.is_reverse,
                                                         kMode,
                                                         lstm_.hidden,
                                                         /*num_layers=*/1,
                                                         lstm_.has_biases,
                                                         /*train=*/true,
                                                         /*bidirectional=*/false,
                                                         /*batch_sizes=*/{},
                                                         /*batch_first=*/false,
                                                         results_[3]);
    return std::apply([](const auto&... all) { return std::vector<at::Tensor>{all...}; },
                      gradients);
  }

  LstmSizes lstm_;
  at::Tensor input_;
  std::vector<at::Tensor> weights_;
  at::Tensor state_;
  std::vector<at::Tensor> results_;
};

LstmMemory memory_of(const LstmSizes& lstm) {
  static std::mutex mutex;
  static std::map<LstmSizes, LstmMemory> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(lstm); found != known.end()) return found->second;
  LstmSizes asked = lstm;
  const double of_step =
      flops_of(lstm) / static_cast<double>(std::max<std::int64_t>(1, lstm.steps));
  asked.steps = std::clamp(static_cast<std::int64_t>(kQuickFlops / std::max(of_step, 1.0)),
                           std::min<std::int64_t>(2, lstm.steps),
                           lstm.steps);
  LstmMemory memory = AskedLstm(asked).memory();
  if (asked.steps < lstm.steps) {
    LstmSizes half = asked;
    half.steps = asked.steps / 2;
    const LstmMemory of_half = AskedLstm(half).memory();
    const auto grow = [&](std::int64_t& bytes, std::int64_t fewer) {
      bytes += (bytes - fewer) / (asked.steps - half.steps) * (lstm.steps - asked.steps);
    };
    grow(memory.workspace, of_half.workspace);
    grow(memory.forward, of_half.forward);
    grow(memory.backward, of_half.backward);
  }
  return known.emplace(lstm, memory).first->second;
}

Shape shape_of(const at::Tensor& like) {
  return {like.sizes().vec(), like.scalar_type()};
}

}  // namespace

Sized lstm_layer(Arguments arguments) {
  const LstmSizes lstm = lstm_of_forward(arguments);
  Shape workspace{{0}, c10::ScalarType::Byte, {}, /*is_defined=*/false};
  std::int64_t scratch = 0;
  if (at::GradMode::is_enabled()) {
    const LstmMemory memory = memory_of(lstm);
    workspace = {{memory.workspace}, c10::ScalarType::Byte};
    scratch = memory.forward;
  }
  return {{{{lstm.steps, lstm.batch, lstm.hidden}, lstm.dtype},
           shape_of(arguments[5].toTensor()),
           shape_of(arguments[6].toTensor()),
           std::move(workspace)},
          scratch};
}

Sized lstm_layer_backward(Arguments arguments) {
  const Shape bias = shape_of(arguments[3].toTensor());
  return {{shape_of(arguments[0].toTensor()),
           shape_of(arguments[1].toTensor()),
           shape_of(arguments[2].toTensor()),
           bias,
           bias,
           shape_of(arguments[5].toTensor()),
           shape_of(arguments[6].toTensor())},
          memory_of(lstm_of_backward(arguments)).backward};
}

double lstm_flops(Arguments arguments) {
  return flops_of(lstm_of_forward(arguments));
}

double lstm_backward_flops(Arguments arguments) {
  return 2 * flops_of(lstm_of_backward(arguments));
}

}  // namespace accel::planning
