// Collectives that have begun, and end when they are waited for.

#include <string>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/rank_group.h"

namespace accel::work_test {
namespace {

class WorkOf : public ::testing::TestWithParam<const char*> {};

// Several begin before the first is waited for.
TEST_P(WorkOf, EndsInAnyOrder) {
  test::run_ranks(2, [] {
    const PartialState state({.init_process_group = {.backend = GetParam()}});
    const auto group = state.process_group();
    const int rank = group->rank();
    at::Tensor sum = at::full({3}, rank + 1.0);
    at::Tensor mean = at::full({2, 4}, rank * 2.0).t();
    at::Tensor all = at::full({2}, -1.0);
    at::Tensor own = at::full({1}, rank + 5.0);
    at::Tensor parts = at::full({2}, rank + 7.0);
    at::Tensor part = at::full({1}, -1.0);

    Work first = group->begin_all_reduce(sum, Reduction::kSum, "adding");
    Work second = group->begin_all_reduce(mean, Reduction::kMean, "taking the mean");
    Work third = group->begin_all_gather_into(all, own, "gathering");
    Work fourth = group->begin_reduce_scatter(part, parts, "scattering");
    for (Work* const work : {&fourth, &second, &third, &first}) work->wait();

    EXPECT_TRUE(sum.eq(3.0).all().item<bool>());
    EXPECT_TRUE(mean.eq(1.0).all().item<bool>());
    EXPECT_EQ(all[0].item<double>(), 5.0);
    EXPECT_EQ(all[1].item<double>(), 6.0);
    EXPECT_EQ(part.item<double>(), 15.0);
  });
}

INSTANTIATE_TEST_SUITE_P(EveryBackend,
                         WorkOf,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace accel::work_test
