// Words that may stand for a value, numbers that are all of a text, and ranges of nodes.

#include "launcher/text/choice_list.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/workers/node_range.h"
#include "runtime/text/number_text.h"

namespace accel::launcher::choice_list_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ChoiceList, IsSplitAtItsCommasAndListedForPeople) {
  EXPECT_THAT(split_choices("no,fp16,bf16"), ElementsAre("no", "fp16", "bf16"));
  EXPECT_THAT(split_choices(""), IsEmpty());
  EXPECT_THAT(split_choices("a,,b"), ElementsAre("a", "", "b"));
  EXPECT_EQ(listed_choices("no,fp16,bf16"), "no, fp16, bf16");
  EXPECT_EQ(listed_choices(""), "");
}

TEST(ChoiceList, FindsWholeWordsInAnyCase) {
  EXPECT_EQ(find_choice("NO,FULL_SHARD", "full_shard"), "FULL_SHARD");
  EXPECT_EQ(find_choice("NO,FULL_SHARD", "No"), "NO");
  EXPECT_EQ(find_choice("NO,FULL_SHARD", "FULL"), std::nullopt);
  EXPECT_EQ(find_choice("NO,FULL_SHARD", ""), std::nullopt);
}

TEST(NumberText, IsAllOfTheTextAndWithinTheType) {
  EXPECT_EQ(number_of<int>("-12"), -12);
  EXPECT_EQ(number_of<double>("1e-3"), 0.001);
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "0x10", "12a", "99999999999"})
    EXPECT_EQ(number_of<int>(text), std::nullopt) << text;
  EXPECT_EQ(number_of<std::size_t>("-1"), std::nullopt);
  EXPECT_EQ(number_of<int>(std::to_string(std::numeric_limits<int>::max())),
            std::numeric_limits<int>::max());
}

TEST(NodeRange, IsANumberOrTwo) {
  const auto ends = [](const char* text) {
    const auto range = parse_node_range(text);
    return range ? std::to_string(range->least) + "-" + std::to_string(range->most) : "none";
  };

  EXPECT_EQ(ends("4"), "4-4");
  EXPECT_EQ(ends("2:4"), "2-4");
  EXPECT_EQ(ends("1:100000"), "1-100000");
  for (const char* text : {"", ":", "2:", ":4", "4:2", "0", "0:2", "1:100001", "a", "2:b", "1:2:3"})
    EXPECT_EQ(ends(text), "none") << text;
}

TEST(NodeRange, HasAShareOfATotalThatDividesByItsOneNumber) {
  const TotalWords words = {.total = "num_processes of job.yaml", .nodes = "--nnodes 2:4"};
  const auto share = share_of_each_node(8, {2, 2}, words);
  const auto open = share_of_each_node(8, {2, 4}, words);
  const auto odd = share_of_each_node(3, {2, 2}, words);

  ASSERT_TRUE(share);
  EXPECT_EQ(*share, 4);
  ASSERT_FALSE(open || odd);
  EXPECT_EQ(open.error().message(),
            "num_processes of job.yaml counts the processes of all nodes, and --nnodes 2:4 leaves "
            "open how many nodes there are");
  EXPECT_EQ(open.error().remedy(), "give --nproc_per_node N, the processes of each node");
  EXPECT_EQ(odd.error().message(),
            "num_processes of job.yaml is 3, which does not divide by the 2 nodes of the job");
  EXPECT_EQ(odd.error().remedy(),
            "give a multiple of 2, or --nproc_per_node N, the processes of each node");
}

}  // namespace
}  // namespace accel::launcher::choice_list_test
