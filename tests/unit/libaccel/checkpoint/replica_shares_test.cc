// How ranks of a node share what is the same on all of them.

#include "libaccel/engine/checkpoint/states/replica_shares.h"

#include <cstdint>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace accel::checkpoint::replica_shares_test {
namespace {

using Ranges = std::vector<ElementRange>;

TEST(ReplicaShares, CutThroughWhatLiesOneBehindTheOther) {
  const std::vector<TensorSize> tensors{{100, 4}, {100, 4}, {200, 4}};
  EXPECT_EQ(shares_of(tensors, {0, 2}), (Ranges{{0, 100}, {0, 100}, {0, 0}}));
  EXPECT_EQ(shares_of(tensors, {1, 2}), (Ranges{{100, 100}, {100, 100}, {0, 200}}));
  EXPECT_EQ(shares_of(tensors, {1, 4}), (Ranges{{100, 100}, {0, 100}, {0, 0}}));
}

// Bytes count, not elements; cuts lie at multiples of 16 elements.
TEST(ReplicaShares, AreOfAsManyBytes) {
  const std::vector<TensorSize> tensors{{1000, 8}, {1000, 2}};
  EXPECT_EQ(shares_of(tensors, {0, 2}), (Ranges{{0, 624}, {0, 0}}));
  EXPECT_EQ(shares_of(tensors, {1, 2}), (Ranges{{624, 1000}, {0, 1000}}));
}

TEST(ReplicaShares, MakeEachTensorOnce) {
  const std::vector<std::vector<TensorSize>> lists{
      {}, {{0, 4}}, {{1, 4}}, {{7, 2}, {1, 8}, {0, 1}, {31, 4}}, {{1 << 20, 4}, {3, 1}, {4097, 2}}};
  for (const auto& tensors : lists) {
    for (int count = 1; count <= 9; ++count) {
      std::vector<std::int64_t> ends(tensors.size());
      for (int place = 0; place < count; ++place) {
        const Ranges shares = shares_of(tensors, {place, count});
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          EXPECT_EQ(shares[i].begin, ends[i]) << place << " of " << count;
          EXPECT_LE(shares[i].begin, shares[i].end);
          ends[i] = shares[i].end;
        }
      }
      for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(ends[i], tensors[i].numel);
    }
  }
}

TEST(ReplicaShares, AreNotedAsPartsWithoutACopy) {
  const std::vector<at::Tensor> tensors{at::arange(64).view({8, 8}), at::arange(64)};
  DividedTensors divided;
  add_shares(tensors, {0, 2}, divided);
  EXPECT_EQ(divided.find(tensors[0])->at(0).values.numel(), 64);
  EXPECT_EQ(divided.find(tensors[0])->at(0).values.const_data_ptr(), tensors[0].const_data_ptr());
  EXPECT_TRUE(divided.find(tensors[1])->empty());
}

TEST(ReplicaShares, ASampleTellsTensorsThatHaveSteppedFromThoseThatHaveNot) {
  const auto sample = [](const at::Tensor& tensor) { return sample_of(std::vector{tensor}); };
  EXPECT_EQ(sample(at::ones({30})), sample(at::ones({30})));
  EXPECT_NE(sample(at::ones({30})), sample(at::ones({30}).mul(1.001)));
  EXPECT_NE(sample(at::zeros({30})), sample(at::zeros({31})));
  EXPECT_NE(sample(at::zeros({30})), sample(at::zeros({30}, at::kInt)));
}

TEST(ReplicaShares, NeedElementsThatAreOneRange) {
  EXPECT_TRUE(is_shareable(at::ones({4, 4})));
  EXPECT_FALSE(is_shareable(at::ones({4, 4}).t()));
  EXPECT_FALSE(is_shareable(at::ones({4, 4}, at::kMeta)));
  EXPECT_FALSE(is_shareable(at::ones({0})));
  EXPECT_FALSE(is_shareable(at::Tensor()));
}

}  // namespace
}  // namespace accel::checkpoint::replica_shares_test
