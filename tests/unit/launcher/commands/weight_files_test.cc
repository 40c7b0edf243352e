#include "checkpoint_tools/models/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::weight_files_test {
namespace {

using Names = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WeightFiles, TheWholeModelIsTakenAlone) {
  EXPECT_THAT(*safetensors_among({"optimizer.safetensors",
                                  "model.fp16.safetensors",
                                  "model.safetensors",
                                  "model-00001-of-00002.safetensors"}),
              ElementsAre("model.safetensors"));
}

TEST(WeightFiles, NumberedFilesAreAllThere) {
  EXPECT_THAT(*safetensors_among({"model-00002-of-00002.safetensors",
                                  "consolidated.safetensors",
                                  "model-00001-of-00002.safetensors"}),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  const auto partial =
      safetensors_among({"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"});
  ASSERT_FALSE(partial);
  EXPECT_THAT(partial.error().message(),
              HasSubstr("model-00002-of-00003.safetensors is missing, of 3 files of which 2"));
  EXPECT_FALSE(safetensors_among({"weights-00001-of-00002.safetensors", "other.safetensors"}));
}

TEST(WeightFiles, OtherNamesAreTakenAsTheyAre) {
  EXPECT_THAT(*safetensors_among({"b.safetensors", "a.safetensors", "config.json", "x.bin"}),
              ElementsAre("a.safetensors", "b.safetensors"));
  EXPECT_THAT(*safetensors_among({"model-1-of-2.safetensors", "-00001-of-00002.safetensors"}),
              ElementsAre("-00001-of-00002.safetensors", "model-1-of-2.safetensors"));
  EXPECT_THAT(*safetensors_among({}), IsEmpty());
}

TEST(WeightFiles, WhatIsNotReadHasARemedyOfItsOwn) {
  EXPECT_THAT(remedy_for_unread("model.gguf"), HasSubstr("GGUF files are not read"));
  EXPECT_THAT(remedy_for_unread("pytorch_model.bin"), HasSubstr("pickled weights"));
  EXPECT_THAT(remedy_for_unread("pytorch_model.bin.index.json"), HasSubstr("pickled weights"));
  EXPECT_EQ(remedy_for_unread("model.safetensors.index.json"), "");
  EXPECT_EQ(remedy_for_unread("README.md"), "");

  const Error distcp = nothing_to_read("folder", Names{"README.md", "__0_0.distcp"});
  EXPECT_THAT(distcp.message(), HasSubstr("in it, only __0_0.distcp"));
  EXPECT_THAT(distcp.remedy(), HasSubstr("accel merge-weights"));
  EXPECT_THAT(nothing_to_read("folder", {}).remedy(), HasSubstr("name the folder that has"));
}

}  // namespace
}  // namespace accel::launcher::weight_files_test
