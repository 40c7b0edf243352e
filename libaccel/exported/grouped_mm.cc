// transformers::grouped_mm_fallback: the products of mixtures of experts, which transformers writes in Python.
//
//   input [S, I], its rows sorted by expert; weight [E, I, O]; offs [E], where the rows of each expert end  ->  [S, O]
//
// Source:   transformers 5, integrations/moe.py: the same products in the same order, so the same bits.

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "libaccel/exported/operator_table.h"

namespace accel::exported {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls visit(expert, first row, number of rows) for each expert that has rows.
template <typename Visit>
void for_each_group(const at::Tensor& ends, const Visit& visit) {
  const at::Tensor host = ends.to(at::kCPU, at::kLong).contiguous();
  std::int64_t start = 0;
  for (std::int64_t expert = 0; expert < host.numel(); ++expert) {
    const std::int64_t end = host.data_ptr<std::int64_t>()[expert];
    if (start == end) continue;
    visit(expert, start, end - start);
    start = end;
  }
}

struct GroupedMm : torch::autograd::Function<GroupedMm> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& input,
                            const at::Tensor& weight,
                            const at::Tensor& ends) {
    TORCH_CHECK(input.dim() == 2 && weight.dim() == 3 && ends.dim() == 1 &&
                    ends.size(0) == weight.size(0) && input.size(1) == weight.size(1),
                "grouped_mm_fallback takes [S, I], [E, I, O] and [E], got ",
                input.sizes(),
                ", ",
                weight.sizes(),
                " and ",
                ends.sizes());
    context->save_for_backward({input, weight, ends});
    at::Tensor output = at::zeros({input.size(0), weight.size(2)}, input.options());
    for_each_group(ends, [&](std::int64_t expert, std::int64_t start, std::int64_t rows) {
      at::Tensor part = output.narrow(0, start, rows);
      at::mm_out(part, input.narrow(0, start, rows), weight.select(0, expert));
    });
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_input = at::zeros_like(input);
    at::Tensor of_weight = at::zeros_like(weight);
    for_each_group(saved[2], [&](std::int64_t expert, std::int64_t start, std::int64_t rows) {
      const at::Tensor part = gradient.narrow(0, start, rows);
      at::Tensor input_part = of_input.narrow(0, start, rows);
      at::Tensor weight_part = of_weight.select(0, expert);
      at::mm_out(input_part, part, weight.select(0, expert).t());
      at::mm_out(weight_part, input.narrow(0, start, rows).t(), part);
    });
    return {of_input, of_weight, at::Tensor()};
  }
};

std::vector<c10::IValue> grouped_mm(std::vector<c10::IValue> values) {
  return {GroupedMm::apply(values[0].toTensor(), values[1].toTensor(), values[2].toTensor())};
}

}  // namespace

std::vector<std::pair<std::string, ExportedOperator>> built_in_operators() {
  return {{"transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor",
           grouped_mm}};
}

}  // namespace accel::exported
