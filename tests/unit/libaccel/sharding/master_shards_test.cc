// Which parameters have full precision when one exposure of masters lies inside another one.

#include "libaccel/engine/sharding/master_shards.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/rank_group.h"

namespace accel::sharding::master_shards_test {
namespace {

constexpr std::int64_t kOneUnitEach = 1;  // bytes: parameters are above it

// Values that bf16 cannot hold.
at::Tensor exact_values(std::int64_t rows, std::int64_t columns) {
  return at::arange(rows * columns).view({rows, columns}).to(at::kFloat).div(7).add(1);
}

// A module of four parameters: two that are ranges of a file, one between them that is not (its memory goes by columns), and
// one that is not divided. Each rank makes the same.
class Masters {
 public:
  Masters() : shards_(units(), PartialState::process_group(), at::kCPU) {
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < exact_.size(); ++p) {
      at::Tensor rounded = exact_[p].to(at::kBFloat16);
      parameters_.push_back({.name = "p" + std::to_string(p), .tensor = rounded});
    }
    for (std::size_t unit = 0; unit < units().size(); ++unit) {
      for (const Piece& piece : pieces_of(units()[unit], rank())) {
        shards_.shard(unit)
            .narrow(0, piece.unit_offset - rank() * units()[unit].shard_numel, piece.numel)
            .copy_(in_memory(piece.parameter).narrow(0, piece.parameter_offset, piece.numel));
      }
    }
    shards_.round_whole(frozen_, at::kBFloat16);
  }

  void expose(FullParameters which, const std::vector<at::Tensor>& asked = {}) {
    shards_.expose(parameters_, which, asked);
  }
  void withdraw() { shards_.withdraw(parameters_); }
  void take() { shards_.take_exposed(parameters_); }
  [[nodiscard]] at::Tensor parameter(std::size_t p) const { return parameters_[p].tensor; }

  [[nodiscard]] bool all_are_exact() const {
    return at::equal(parameter(0), exact_[0]) && at::equal(parameter(1), exact_[1]) &&
           at::equal(parameter(2), exact_[2]) && at::equal(frozen_, exact_frozen_);
  }
  [[nodiscard]] bool all_are_rounded() const {
    return parameter(0).scalar_type() == at::kBFloat16 &&
           parameter(1).scalar_type() == at::kBFloat16 &&
           parameter(2).scalar_type() == at::kBFloat16 && frozen_.scalar_type() == at::kBFloat16;
  }

 private:
  static int rank() { return PartialState::process_group()->rank(); }
  static std::vector<Unit> units() {
    return plan_units(
        {{.name = "p0", .numel = 24}, {.name = "p1", .numel = 30}, {.name = "p2", .numel = 8}},
        PartialState::process_group()->size(),
        kOneUnitEach);
  }
  [[nodiscard]] at::Tensor in_memory(std::size_t p) const {
    return exact_[p].as_strided({exact_[p].numel()}, {1});
  }

  std::vector<at::Tensor> exact_{exact_values(4, 6), exact_values(5, 6).t(), exact_values(2, 4)};
  at::Tensor exact_frozen_ = exact_values(2, 2);
  at::Tensor frozen_ = exact_frozen_.clone();
  std::vector<NamedParameter> parameters_;
  MasterShards shards_;
};

template <typename F>
void on_two_ranks(F body) {
  test::run_ranks(2, [&] {
    const PartialState state;
    body();
  });
}

FullParameters only_on_rank_0() {
  return test::rank_of_this_process() == 0 ? FullParameters::kAll : FullParameters::kNone;
}

TEST(MasterShards, AnExposureInsideAnotherShowsWhatThatOneLeftRounded) {
  on_two_ranks([] {
    for (const FullParameters outer :
         {FullParameters::kUndivided, FullParameters::kNone, only_on_rank_0()}) {
      Masters masters;
      masters.expose(outer);
      masters.expose(FullParameters::kAll);
      EXPECT_TRUE(masters.all_are_exact()) << static_cast<int>(outer);
      masters.withdraw();
      masters.withdraw();
      EXPECT_TRUE(masters.all_are_rounded()) << static_cast<int>(outer);
    }
  });
}

TEST(MasterShards, AnExposureInsideAnotherShowsNothingToARankThatWantsNothing) {
  on_two_ranks([] {
    Masters masters;
    masters.expose(FullParameters::kUndivided);
    masters.expose(only_on_rank_0());
    EXPECT_EQ(masters.all_are_exact(), test::rank_of_this_process() == 0);
    EXPECT_EQ(masters.parameter(1).scalar_type(), at::kFloat) << "the outer one shows it";
    masters.withdraw();
    masters.withdraw();
    EXPECT_TRUE(masters.all_are_rounded());
  });
}

TEST(MasterShards, ShowsEachRankTheUnitsThatItAsksFor) {
  on_two_ranks([] {
    const bool asks = test::rank_of_this_process() == 1;
    Masters masters;
    std::vector<at::Tensor> asked;
    if (asks) asked = {masters.parameter(0), at::zeros({2})};
    masters.expose(FullParameters::kAsked, asked);
    EXPECT_EQ(masters.parameter(0).scalar_type(), asks ? at::kFloat : at::kBFloat16);
    EXPECT_EQ(masters.parameter(1).scalar_type(), at::kFloat) << "no range of a file";
    EXPECT_EQ(masters.parameter(2).scalar_type(), at::kBFloat16) << "nobody asked for it";
    masters.expose(FullParameters::kAll);
    EXPECT_TRUE(masters.all_are_exact());
    masters.withdraw();
    masters.withdraw();
    EXPECT_TRUE(masters.all_are_rounded());
  });
}

TEST(MasterShards, TakesWhatWasWrittenToParametersOfBothExposures) {
  on_two_ranks([] {
    Masters masters;
    const at::NoGradGuard no_grad;
    masters.expose(FullParameters::kUndivided);
    masters.parameter(1).fill_(1.0 / 3);
    masters.expose(FullParameters::kAll);
    masters.parameter(0).fill_(1.0 / 7);
    masters.take();
    masters.withdraw();
    masters.withdraw();

    masters.expose(FullParameters::kAll);
    EXPECT_TRUE(at::equal(masters.parameter(0), at::zeros({4, 6}).fill_(1.0 / 7)));
    EXPECT_TRUE(at::equal(masters.parameter(1), at::zeros({6, 5}).fill_(1.0 / 3)));
    masters.withdraw();
  });
}

}  // namespace
}  // namespace accel::sharding::master_shards_test
