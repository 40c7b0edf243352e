// That what autograd saves can be kept elsewhere between forward and backward, as an offload of activations does it.

#include "libaccel/interception/saved_tensors.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace accel::interception::saved_tensors_test {
namespace {

namespace nn = torch::nn;

int g_num_packed = 0;
int g_num_unpacked = 0;

// Keeps the bytes of a tensor, and the tensor not.
class Bytes final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    ++g_num_packed;
    EXPECT_TRUE(tensor.is_non_overlapping_and_dense());
    const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    bytes_.assign(begin, begin + tensor.nbytes());
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    dtype_ = tensor.scalar_type();
  }
  at::Tensor call_unpack_hook() override {
    ++g_num_unpacked;
    // As it lay: products of transposed tensors sum in another order.
    at::Tensor tensor = at::empty_strided(sizes_, strides_, dtype_);
    std::memcpy(tensor.mutable_data_ptr(), bytes_.data(), bytes_.size());
    return tensor;
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType dtype_ = at::kFloat;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> bytes() {
  return std::make_unique<Bytes>();
}

class SavedTensors : public ::testing::Test {
 protected:
  SavedTensors() {
    g_num_packed = 0;
    g_num_unpacked = 0;
  }
};

nn::Sequential perceptron() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 4));
}

TEST_F(SavedTensors, AreKeptByHooksAndTheGradientsAreTheSame) {
  nn::Sequential plain = perceptron();
  nn::Sequential net = perceptron();
  const at::Tensor input = at::randn({5, 6});
  plain->forward(input).square().sum().backward();

  std::optional<SavedTensorScope> scope(std::in_place, &bytes);
  at::Tensor hidden = net[0]->as<nn::Linear>()->forward(input).tanh();
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(hidden.storage().getWeakStorageImpl());
  at::Tensor loss = net[2]->as<nn::Linear>()->forward(hidden).square().sum();
  scope.reset();
  hidden.reset();
  EXPECT_TRUE(memory.expired()) << "the activation's memory is free until backward";
  const int num_packed = g_num_packed;
  loss.backward();

  EXPECT_GT(num_packed, 3);
  EXPECT_EQ(g_num_packed, num_packed) << "outside of the scope";
  EXPECT_EQ(g_num_unpacked, num_packed);
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_TRUE(net->parameters()[i].grad().equal(plain->parameters()[i].grad())) << i;
}

TEST_F(SavedTensors, TheInnerScopeDecidesForItsThreadAlone) {
  const at::Tensor weight = at::randn({3}).requires_grad_();
  const SavedTensorScope scope(&bytes);
  {
    const SavedTensorScope within([] { return nullptr; });
    (void)(weight * weight);
  }
  std::thread([&weight] { (void)(weight * weight); }).join();
  EXPECT_EQ(g_num_packed, 0);

  (void)(weight * weight);
  EXPECT_EQ(g_num_packed, 2);
}

}  // namespace
}  // namespace accel::interception::saved_tensors_test
