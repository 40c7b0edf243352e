// Tensors to and from safetensors files, within one process. tests/peer/safetensors_interop.py does
// the same against Python's implementation.

#include <filesystem>
#include <fstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/safetensors_file.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::safetensors::safetensors_file_test {
namespace {

using test::SameTensor;
using ::testing::HasSubstr;

class SafetensorsFile : public ::testing::Test {
 protected:
  at::Tensor round_trip(const at::Tensor& tensor) {
    save_file({{"t", tensor}}, path_);
    return load_file(path_).at("t");
  }

  test::ScratchFolder scratch_;
  std::filesystem::path path_ = scratch_.path() / "model.safetensors";
};

TEST_F(SafetensorsFile, KeepsEveryDtypeToTheBit) {
  const at::Tensor bits = at::arange(0, 64, at::kByte).reshape({2, 32});
  for (const at::ScalarType dtype : {at::kBool,
                                     at::kByte,
                                     at::kChar,
                                     at::ScalarType::Float8_e5m2,
                                     at::ScalarType::Float8_e4m3fn,
                                     at::ScalarType::Float8_e8m0fnu,
                                     at::ScalarType::Float8_e4m3fnuz,
                                     at::ScalarType::Float8_e5m2fnuz,
                                     at::ScalarType::Float4_e2m1fn_x2,
                                     at::kShort,
                                     at::ScalarType::UInt16,
                                     at::kHalf,
                                     at::kBFloat16,
                                     at::kInt,
                                     at::ScalarType::UInt32,
                                     at::kFloat,
                                     at::kComplexFloat,
                                     at::kDouble,
                                     at::kLong,
                                     at::ScalarType::UInt64}) {
    const at::Tensor tensor = dtype == at::kBool ? bits.gt(10) : bits.view(dtype);
    EXPECT_THAT(round_trip(tensor), SameTensor(tensor)) << c10::toString(dtype);
  }
}

TEST_F(SafetensorsFile, KeepsSingleValuesAndEmptyTensors) {
  const at::Tensor one = at::zeros({}, at::kLong).fill_(-7);
  EXPECT_THAT(round_trip(one), SameTensor(one));
  const at::Tensor none = at::empty({3, 0, 2});
  EXPECT_THAT(round_trip(none), SameTensor(none));

  save_file({}, path_);
  EXPECT_TRUE(load_file(path_).empty());
}

TEST_F(SafetensorsFile, WritesWhatATensorMeansNotHowItLies) {
  const at::Tensor base = at::randn({4, 6});
  EXPECT_THAT(round_trip(base.t()), SameTensor(base.t()));
  EXPECT_THAT(round_trip(base.slice(1, 1, 6, 2)), SameTensor(base.slice(1, 1, 6, 2)));
  EXPECT_THAT(round_trip(base[0].expand({3, 6})), SameTensor(base[0].expand({3, 6})));
  const at::Tensor conjugated = at::complex(base, base.t().reshape({4, 6})).conj();
  EXPECT_THAT(round_trip(conjugated), SameTensor(conjugated.resolve_conj()));
}

TEST_F(SafetensorsFile, KeepsMetadata) {
  save_file({{"t", at::zeros({1})}}, path_, {{"format", "pt"}, {"note", "a \"b\"\n"}});

  EXPECT_EQ(load_metadata(path_), (Metadata{{"format", "pt"}, {"note", "a \"b\"\n"}}));
}

TEST_F(SafetensorsFile, RefusesTensorsThatHaveNoPlainBytes) {
  const auto error_of = [&](const at::Tensor& tensor) -> std::string {
    try {
      save_file({{"layer.w", tensor}}, path_);
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };

  EXPECT_THAT(error_of(at::zeros({2}).to_sparse()), HasSubstr("\"layer.w\" is sparse"));
  EXPECT_THAT(error_of(at::empty({2}, at::TensorOptions().device(at::kMeta))),
              HasSubstr("meta device"));
  EXPECT_THAT(error_of(at::zeros({2}, at::kComplexDouble)), HasSubstr("dtype ComplexDouble"));
  EXPECT_THAT(error_of(at::Tensor()), HasSubstr("undefined"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

TEST_F(SafetensorsFile, FailedSaveLeavesTheOldFile) {
  save_file({{"t", at::zeros({3})}}, path_);

  EXPECT_THROW(save_file({{"t", at::zeros({2}).to_sparse()}}, path_), Error);

  EXPECT_THAT(load_file(path_).at("t"), SameTensor(at::zeros({3})));
}

TEST_F(SafetensorsFile, TruncatedFileIsNamedAndNothingIsReturned) {
  save_file({{"t", at::zeros({100})}}, path_);
  std::filesystem::resize_file(path_, 300);

  try {
    load_file(path_);
    FAIL() << "a truncated file was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSafetensorsHeader);
    EXPECT_THAT(error.message(),
                HasSubstr("tensor \"t\" at data_offsets [0, 400] ends past the data"));
    EXPECT_THAT(error.what(), HasSubstr(path_.string()));
  }
}

}  // namespace
}  // namespace accel::safetensors::safetensors_file_test
