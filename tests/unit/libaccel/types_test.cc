// The texts of the public enumerations, both ways.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/types.h>

namespace accel::types_test {
namespace {

using ::testing::HasSubstr;

template <typename E>
class EnumTexts : public ::testing::Test {};
using AllEnums = ::testing::Types<DistributedType,
                                  ComputeEnvironment,
                                  PrecisionType,
                                  RNGType,
                                  Reduction,
                                  DDPCommunicationHookType,
                                  DynamoBackend,
                                  SageMakerDistributedType,
                                  LoggerType,
                                  LogLevel>;
TYPED_TEST_SUITE(EnumTexts, AllEnums);

TYPED_TEST(EnumTexts, GoBothWays) {
  for (const auto& entry : enum_texts<TypeParam>()) {
    EXPECT_EQ(to_string(entry.value), entry.text);
    EXPECT_EQ(parse<TypeParam>(entry.text), entry.value);
  }
}

TEST(Parse, TakesUpperAndLowerCaseAlike) {
  EXPECT_EQ(parse<PrecisionType>("BF16"), PrecisionType::kBf16);
  EXPECT_EQ(parse<DistributedType>("multi_cpu"), DistributedType::kMultiCpu);
}

TEST(Parse, ListsWhatItKnows) {
  try {
    parse<PrecisionType>("int3");
    FAIL() << "took a precision that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("'int3' is no precision; expected one of no, fp8, fp16, bf16"));
  }
}

}  // namespace
}  // namespace accel::types_test
