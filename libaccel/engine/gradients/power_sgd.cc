// An exchange, for each rank the same:
//
//   G    += error
//   P     = sum of all ranks' G Q         Q orthonormal, of the step before or drawn
//   P     = orthonormal columns of P
//   Q     = mean of all ranks' G^T P
//   error = G - P Q^T, and the gradients are P Q^T
//
// Small gradients, where P and Q would not be smaller, are averaged in a message of their own. The error is measured over the
// whole bucket, as PyTorch does: for those it is the difference between this rank's gradient and the mean, which adds up to
// nothing over the ranks.
//
// A column without any length stays 0. PyTorch means to do so, but a tensor divided by zero raises no ZeroDivisionError: there
// it becomes NaN, and all weights after it.

#include "libaccel/engine/gradients/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <accel/error.h>

#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/state_reader.h"

namespace accel {
namespace {

constexpr std::uint32_t kSeeds = 1'000'000'000;  // below it
constexpr std::uint32_t kSeedMask = (1U << 30U) - 1;
constexpr std::int64_t kMostGramSchmidt = 2;  // columns

// matrices: [b, n, r], in place.
void orthogonalize_one_by_one(const at::Tensor& matrices, double epsilon) {
  const std::int64_t num_columns = matrices.size(2);
  for (std::int64_t i = 0; i < num_columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor length = at::norm(column, 2, {1}, /*keepdim=*/true);
    if (epsilon == 0) {
      length.masked_fill_(length == 0, 1);
    } else {
      length.add_(epsilon);
    }
    column.div_(length);
    if (i + 1 == num_columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, num_columns - i - 1);
    rest.sub_(at::sum(column * rest, {1}, /*keepdim=*/true) * column);
  }
}

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  if (matrices.size(2) <= kMostGramSchmidt || matrices.element_size() == 2) {
    orthogonalize_one_by_one(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

bool is_all_finite(const at::Tensor& values) {
  return at::isfinite(values).all().item<bool>();
}

// A generator of its own: numbers of the program's generators stay as they are.
at::Generator generator_from(std::uint32_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

// A gradient of the bucket that is exchanged as a product.
struct Factored {
  at::Tensor matrix;  // [1, n, m]: a view of the gradient, or a copy where that has no such view
  at::Tensor gradient;
  at::Tensor p, q;  // [1, n, r], [1, m, r]: views of all P and all Q

  void write_back() const {
    if (!matrix.is_alias_of(gradient)) gradient.copy_(matrix.view(gradient.sizes()));
  }
};

std::vector<std::int64_t> parameter_numels(const GradientBucket& bucket) {
  std::vector<std::int64_t> numels;
  for (const at::Tensor& parameter : bucket.parameters) numels.push_back(parameter.numel());
  return numels;
}

std::string bucket_key(std::size_t bucket, const char* what) {
  return "bucket_" + std::to_string(bucket) + "." + what;
}

}  // namespace

PowerSgd::PowerSgd(const PowerSGDOptions& options, Form form)
    : options_(options), form_(form), generator_(options.random_seed) {
  check_number(options.matrix_approximation_rank >= 1,
               "comm_state_option.matrix_approximation_rank",
               static_cast<double>(options.matrix_approximation_rank),
               "1 or more");
  const std::int64_t first = options.use_error_feedback || options.warm_start ? 2 : 0;
  check_number(options.start_powerSGD_iter >= first,
               "comm_state_option.start_powerSGD_iter",
               static_cast<double>(options.start_powerSGD_iter),
               first == 2 ? "2 or more, with use_error_feedback or warm_start" : "0 or more");
  check_number(options.min_compression_rate > 0,
               "comm_state_option.min_compression_rate",
               options.min_compression_rate,
               "a number above 0");
  check_number(options.orthogonalization_epsilon >= 0,
               "comm_state_option.orthogonalization_epsilon",
               options.orthogonalization_epsilon,
               "0 or above");
}

at::Tensor PowerSgd::exchange(GradientBucket& bucket, CommunicationGroup& group) {
  const at::NoGradGuard no_grad;
  const std::int64_t exchanges = num_exchanges_;
  if (bucket.is_last) ++num_exchanges_;
  num_ranks_ = group.size();
  if (exchanges < options_.start_powerSGD_iter) return allreduce_hook(bucket, group);
  Bucket& state = buckets_[bucket.index];
  std::vector<std::int64_t> numels = parameter_numels(bucket);
  const auto is_other = [&](const at::Tensor& kept) {
    return kept.defined() && kept.scalar_type() != bucket.buffer.scalar_type();
  };
  if (is_other(state.error) || is_other(state.q)) state = {};
  if (!state.numels.empty() && state.numels != numels) {
    state = {};
    return allreduce_hook(bucket, group);
  }
  state.numels = std::move(numels);
  return form_ == Form::kByMatrix ? exchange_matrices(bucket, state, group)
                                  : exchange_square(bucket, state, group);
}

at::Tensor PowerSgd::add_error(at::Tensor& gradients, Bucket& state) const {
  if (!options_.use_error_feedback) return {};
  if (state.error.defined()) gradients.add_(state.error);
  return gradients.clone();
}

bool PowerSgd::is_compressed(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t rank = std::min({rows, columns, options_.matrix_approximation_rank});
  return static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
         static_cast<double>(rows * columns);
}

at::Tensor PowerSgd::exchange_matrices(GradientBucket& bucket,
                                       Bucket& state,
                                       CommunicationGroup& group) {
  at::Tensor& gradients = bucket.buffer;
  const at::Tensor measured = add_error(gradients, state);

  std::vector<Factored> factored;
  std::vector<at::Tensor> averaged;
  std::int64_t p_size = 0;
  std::int64_t q_size = 0;
  for (const at::Tensor& gradient : bucket.gradients()) {
    const std::int64_t rows = gradient.dim() == 0 ? 1 : gradient.size(0);
    const std::int64_t columns = rows == 0 ? 0 : gradient.numel() / rows;
    if (!is_compressed(rows, columns)) {
      averaged.push_back(gradient);
      continue;
    }
    const std::int64_t rank = std::min({rows, columns, options_.matrix_approximation_rank});
    p_size += rows * rank;
    q_size += columns * rank;
    factored.push_back({.matrix = gradient.reshape({1, rows, columns}), .gradient = gradient});
  }

  const at::Tensor all_p = at::empty({p_size}, gradients.options());
  const bool draws = !state.q.defined() || !options_.warm_start;
  at::Tensor all_q = draws ? at::empty({q_size}, gradients.options()) : state.q;
  std::optional<at::Generator> generator;
  if (draws) generator = generator_from(next_seed());
  p_size = q_size = 0;
  for (Factored& each : factored) {
    const std::int64_t rows = each.matrix.size(1);
    const std::int64_t columns = each.matrix.size(2);
    const std::int64_t rank = std::min({rows, columns, options_.matrix_approximation_rank});
    each.p = all_p.narrow(0, p_size, rows * rank).view({1, rows, rank});
    each.q = all_q.narrow(0, q_size, columns * rank).view({1, columns, rank});
    p_size += rows * rank;
    q_size += columns * rank;
    if (draws) each.q.copy_(at::randn({1, columns, rank}, generator, gradients.options()));
    orthogonalize(each.q, options_.orthogonalization_epsilon);
    at::bmm_out(each.p, each.matrix, each.q);
  }

  at::Tensor mean;
  if (!averaged.empty()) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : averaged) flat.push_back(gradient.reshape({-1}));
    mean = at::cat(flat);
    group.all_reduce_(mean);
    mean.div_(group.size());
  }
  if (p_size > 0) group.all_reduce_(all_p);
  if (!is_all_finite(all_p) || (mean.defined() && !is_all_finite(mean))) {
    if (state.error.defined()) gradients.sub_(state.error);
    return allreduce_hook(bucket, group);
  }
  std::int64_t next = 0;
  for (const at::Tensor& gradient : averaged) {
    gradient.copy_(mean.narrow(0, next, gradient.numel()).view(gradient.sizes()));
    next += gradient.numel();
  }
  for (Factored& each : factored) {
    orthogonalize(each.p, options_.orthogonalization_epsilon);
    at::bmm_out(each.q, each.matrix.transpose(1, 2), each.p);
  }
  if (q_size > 0) group.all_reduce_(all_q);
  all_q.div_(group.size());
  for (Factored& each : factored) {
    at::bmm_out(each.matrix, each.p, each.q.transpose(1, 2));
    each.write_back();
  }
  if (options_.use_error_feedback) state.error = measured - gradients;
  if (options_.warm_start) state.q = all_q;
  return gradients;
}

at::Tensor PowerSgd::exchange_square(GradientBucket& bucket,
                                     Bucket& state,
                                     CommunicationGroup& group) {
  const std::int64_t length = bucket.buffer.numel();
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
  const std::int64_t rank = options_.matrix_approximation_rank;
  at::Tensor square = at::zeros({side * side}, bucket.buffer.options());
  square.narrow(0, 0, length).copy_(bucket.buffer);
  const at::Tensor measured = add_error(square, state);
  const at::Tensor matrix = square.view({side, side});

  at::Tensor q = state.q;
  if (!q.defined() || !options_.warm_start)
    q = at::randn({side, rank}, generator_from(next_seed()), square.options());
  orthogonalize(q.unsqueeze(0), 0);
  at::Tensor p = at::matmul(matrix, q);
  group.all_reduce_(p);
  if (!is_all_finite(p)) return allreduce_hook(bucket, group);
  orthogonalize(p.unsqueeze(0), 0);
  at::matmul_out(q, matrix.t(), p);
  group.all_reduce_(q);
  q.div_(group.size());
  at::Tensor product = matrix;
  at::matmul_out(product, p, q.t());
  if (options_.use_error_feedback) state.error = measured - square;
  if (options_.warm_start) state.q = q;
  return square.narrow(0, 0, length);
}

// numpy.random.RandomState.randint(kSeeds).
std::uint32_t PowerSgd::next_seed() {
  ++num_draws_;
  std::uint32_t value = kSeeds;
  while (value >= kSeeds) value = static_cast<std::uint32_t>(generator_()) & kSeedMask;
  return value;
}

void PowerSgd::skip_seeds(std::int64_t count) {
  generator_.seed(options_.random_seed);
  num_draws_ = 0;
  while (num_draws_ < count) std::ignore = next_seed();
}

StateDict PowerSgd::state_dict() const {
  StateDict state;
  state.values = {{"num_exchanges", num_exchanges_},
                  {"num_draws", num_draws_},
                  {"num_ranks", num_ranks_},
                  {"form", static_cast<std::int64_t>(form_)},
                  {"columns", options_.matrix_approximation_rank},
                  {"num_buckets", std::ssize(buckets_)}};
  for (const auto& [index, bucket] : buckets_) {
    state.values[bucket_key(index, "numels")] = bucket.numels;
    if (bucket.error.defined()) state.tensors[bucket_key(index, "error")] = bucket.error;
    if (bucket.q.defined()) state.tensors[bucket_key(index, "q")] = bucket.q;
  }
  return state;
}

void PowerSgd::load_state_dict(const StateDict& state) {
  const StateReader reader("PowerSGD", state);
  const std::int64_t num_exchanges = reader.integer("num_exchanges");
  const std::int64_t num_draws = reader.integer("num_draws");
  const std::int64_t num_ranks = reader.integer("num_ranks");
  std::map<std::size_t, Bucket> buckets;
  for (std::int64_t i = 0; i < reader.integer("num_buckets"); ++i) {
    const auto index = static_cast<std::size_t>(i);
    Bucket& bucket = buckets[index];
    for (const double numel : reader.numbers(bucket_key(index, "numels")))
      bucket.numels.push_back(static_cast<std::int64_t>(numel));
    const auto tensor = [&](const char* what) {
      const auto found = state.tensors.find(bucket_key(index, what));
      return found == state.tensors.end() ? at::Tensor() : found->second.clone();
    };
    bucket.error = tensor("error");
    bucket.q = tensor("q");
  }
  // Errors and Q of another form, or of another number of columns, have other sizes.
  const bool is_alike = reader.integer("form") == static_cast<std::int64_t>(form_) &&
                        reader.integer("columns") == options_.matrix_approximation_rank;
  if (!is_alike) buckets.clear();
  num_exchanges_ = num_exchanges;
  num_ranks_ = num_ranks;
  buckets_ = std::move(buckets);
  skip_seeds(num_draws);
}

void PowerSgd::agree(CommunicationGroup& group) {
  const at::Tensor first = at::tensor({num_exchanges_, num_draws_, num_ranks_}, at::kLong);
  group.broadcast_(first);
  const auto* const values = first.const_data_ptr<std::int64_t>();
  num_exchanges_ = values[0];
  skip_seeds(values[1]);
  if (values[2] == group.size()) return;
  num_ranks_ = group.size();
  buckets_.clear();
}

}  // namespace accel
