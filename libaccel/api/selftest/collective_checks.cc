// Rank r brings values that no other rank brings, so that a wrong order, a lost rank and a wrong operation all show.
// Sums are of small whole numbers, which every type of float here holds exactly: the results are equal to the bit.

#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "libaccel/api/selftest/self_test.h"

namespace accel::selftest {
namespace {

constexpr std::int64_t kElements = 5;

// [rank, rank + 1, ...] as `type`.
at::Tensor values_of(int rank, at::ScalarType type, c10::Device device) {
  return (at::arange(kElements, at::kLong) + rank).to(device, type);
}

// What `combine` makes of the values of all ranks.
template <typename Combine>
at::Tensor over_all_ranks(const Surroundings& here, at::ScalarType type, Combine combine) {
  at::Tensor result = values_of(0, type, at::kCPU);
  for (int rank = 1; rank < here.num_ranks(); ++rank)
    result = combine(result, values_of(rank, type, at::kCPU));
  return result;
}

void check_type(const Surroundings& here, at::ScalarType type) {
  const std::string name = c10::toString(type);
  const auto device = here.accelerator.device();
  const at::Tensor own = values_of(here.rank(), type, device);
  std::vector<at::Tensor> everybodys;
  for (int rank = 0; rank < here.num_ranks(); ++rank)
    everybodys.push_back(values_of(rank, type, at::kCPU));
  const auto add = [](const at::Tensor& a, const at::Tensor& b) { return a + b; };
  const auto larger = [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); };
  const at::Tensor sum = over_all_ranks(here, type, add);

  here.expect_equal(gather(own), at::cat(everybodys), "gather of " + name);
  here.expect_equal(reduce(own, Reduction::kSum), sum, "sum of " + name);
  here.expect_equal(
      reduce(own, Reduction::kMax), over_all_ranks(here, type, larger), "maximum of " + name);
  if (!c10::isFloatingType(type)) return;
  // One division, correctly rounded, or a multiplication with 1/N: two roundings of the type.
  const double tolerance =
      4 * (here.num_ranks() + kElements) * (type == at::kDouble ? 2.3e-16 : 1.2e-7);
  here.expect_equal(
      reduce(own, Reduction::kMean), sum / here.num_ranks(), "mean of " + name, tolerance);
}

void check_broadcasts(const Surroundings& here) {
  for (int source = 0; source < here.num_ranks(); ++source) {
    const at::Tensor seen =
        broadcast(values_of(here.rank(), at::kFloat, here.accelerator.device()), source);
    here.expect_equal(seen,
                      values_of(source, at::kFloat, at::kCPU),
                      "broadcast from rank " + std::to_string(source));
  }
}

void check_padding(const Surroundings& here) {
  const std::int64_t rows = here.rank() + 1;
  const at::Tensor own =
      at::full({rows, 2}, here.rank() + 1, at::kLong).to(here.accelerator.device());
  at::Tensor wanted = at::zeros({here.num_ranks(), 2}, at::kLong);
  wanted.slice(0, 0, rows).fill_(here.rank() + 1);
  here.expect_equal(pad_across_processes(own), wanted, "pad_across_processes");
}

}  // namespace

void check_collectives(const Surroundings& here) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kInt})
    check_type(here, type);
  check_broadcasts(here);
  check_padding(here);
}

void check_objects(const Surroundings& here) {
  const std::vector<std::string> own(static_cast<std::size_t>(here.rank()) + 1,
                                     "of rank " + std::to_string(here.rank()));
  std::vector<std::string> wanted;
  for (int rank = 0; rank < here.num_ranks(); ++rank)
    wanted.insert(
        wanted.end(), static_cast<std::size_t>(rank) + 1, "of rank " + std::to_string(rank));
  if (here.is_faulty) wanted.clear();
  if (gather_object(own) != wanted)
    throw CheckFailed("gather_object: not the objects of all ranks in their order");
  const std::string last = broadcast_object(own.front(), here.num_ranks() - 1);
  if (last != wanted.back())
    throw CheckFailed("broadcast_object: '" + last + "', expected '" + wanted.back() + "'");
}

}  // namespace accel::selftest
