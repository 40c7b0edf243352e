// Pickles, good and hostile. tests/peer/merge_weights.py reads those that Python writes.

#include "checkpoint_tools/formats/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/peak_memory.h"
#include "tests/unit/checkpoint_tools/saved_archive.h"

namespace accel::launcher::pickle_test {
namespace {

using namespace accel::test;
using namespace std::string_literals;
using ::testing::HasSubstr;

constexpr std::string_view kAllowed[] = {"torch Size", "collections OrderedDict"};

std::string message_of(const std::string& bytes) {
  const auto pickle = read_pickle(bytes, kAllowed);
  return pickle ? "no error" : pickle.error().message();
}

TEST(Pickle, ReadsContainersScalarsAndTexts) {
  const std::string bytes =
      pickle_of(dict_op({{text_op("a"), tuple_op({int_op(7), "J\xff\xff\xff\xff"s, "\x88", "N"})},
                         {text_op("b"), list_op({text_op("x"), "\x8a\x00"s})}}));
  const auto pickle = read_pickle(bytes, kAllowed);

  ASSERT_TRUE(pickle) << pickle.error().what();
  const auto a = pickle->field(pickle->root(), "a");
  ASSERT_TRUE(a);
  const auto items = pickle->sequence(*a);
  ASSERT_TRUE(items);
  ASSERT_EQ(items->size(), 4);
  EXPECT_EQ(pickle->integer((*items)[0]), 7);
  EXPECT_EQ(pickle->integer((*items)[1]), -1);
  EXPECT_EQ(pickle->integer((*items)[2]), std::nullopt) << "True is no size";
  const auto b = pickle->sequence(*pickle->field(pickle->root(), "b"));
  ASSERT_TRUE(b);
  EXPECT_EQ(pickle->text((*b)[0]), "x");
  EXPECT_EQ(pickle->integer((*b)[1]), 0);
  EXPECT_EQ(pickle->field(pickle->root(), "c"), std::nullopt);
}

TEST(Pickle, NotesACallAndDoesNotMakeIt) {
  const auto pickle =
      read_pickle(pickle_of(call_op(name_op("torch", "Size"), {tuple_op({int_op(3)})})), kAllowed);

  ASSERT_TRUE(pickle);
  EXPECT_EQ(pickle->made_by(pickle->root()), "torch Size");
  EXPECT_EQ(pickle->arguments(pickle->root()).size(), 1);
}

TEST(Pickle, ItemsOfAnOrderedDictAreItsEntries) {
  const std::string bytes = pickle_of(call_op(name_op("collections", "OrderedDict"), {}) +
                                      text_op("k") + int_op(1) + "s");
  const auto pickle = read_pickle(bytes, kAllowed);

  ASSERT_TRUE(pickle);
  EXPECT_EQ(pickle->integer(*pickle->field(pickle->root(), "k")), 1);
}

TEST(Pickle, ANameThatIsNotAllowedIsRefused) {
  const std::string system = call_op(name_op("os", "system"), {text_op("touch /tmp/was_run")});
  EXPECT_THAT(message_of(pickle_of(system)),
              HasSubstr("names os system at byte 2; nothing was run"));
  const std::string by_stack = text_op("builtins") + text_op("eval") + "\x93";
  EXPECT_THAT(message_of(pickle_of(by_stack)), HasSubstr("names builtins eval"));
  // What looks like an allowed name in two parts is none.
  EXPECT_THAT(message_of(pickle_of(name_op("torch", "Size.__init__"))), HasSubstr("names"));
  EXPECT_THAT(message_of(pickle_of(name_op("", "torch Size"))), HasSubstr("names"));
}

TEST(Pickle, WhatContainsItselfIsAValueLikeAnyOther) {
  const auto pickle = read_pickle(pickle_of("]q\x01h\x01"s + "a"), kAllowed);

  ASSERT_TRUE(pickle);
  const auto items = pickle->sequence(pickle->root());
  ASSERT_TRUE(items);
  EXPECT_EQ((*items)[0], pickle->root());
  // An object that is its own state, and one that is its own arguments' item.
  EXPECT_TRUE(
      read_pickle(pickle_of(name_op("torch", "Size") + ")\x81q\x01h\x01"s + "b"), kAllowed));
}

TEST(Pickle, EveryTruncationIsAnError) {
  const std::string whole = pickle_of(dict_op(
      {{text_op("name"), call_op(name_op("torch", "Size"), {sizes_op({1, 1u << 20, 1ull << 40})})},
       {text_op("list"), list_op({text_op("x"), "\x88"})}}));
  ASSERT_TRUE(read_pickle(whole, kAllowed));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(read_pickle(std::string_view(whole).substr(0, length), kAllowed)) << length;
}

TEST(Pickle, LengthsAndNumbersBeyondTheInputAreRefused) {
  EXPECT_THAT(message_of("\x80\x04\x8d" + little(~0ull, 8) + "x."),
              HasSubstr("ends within a value"));
  EXPECT_THAT(message_of("\x80\x04\x8d" + little(1ull << 62, 8) + "x."), HasSubstr("ends within"));
  EXPECT_THAT(message_of("\x80\x02Nr\xff\xff\xff\xff."s),
              HasSubstr("memo number that is too large"));
  EXPECT_THAT(message_of("\x80\x02j\xff\xff\xff\xff."s), HasSubstr("was not set"));
  EXPECT_THAT(message_of("\x80\x02h\x05."s), HasSubstr("memo number 5 was not set"));
  EXPECT_THAT(message_of("\x80\x02\x8a\x09" + little(0, 9) + "."), HasSubstr("more than 64 bits"));
}

TEST(Pickle, AnUnbalancedStackIsRefused) {
  for (const std::string& ops : {"."s,
                                 "0."s,
                                 "s."s,
                                 "a."s,
                                 "t."s,
                                 "R."s,
                                 "b."s,
                                 "NN\x81."s,
                                 "(0."s,
                                 "}(Nu."s,
                                 "Na."s,
                                 "Nb."s,
                                 "N(Nu."s,
                                 "(1."s,
                                 "\x94."s,
                                 "NQ."s})
    EXPECT_NE(message_of("\x80\x02" + ops), "no error") << ops;
}

TEST(Pickle, WhatPyTorchDoesNotWriteIsNamed) {
  EXPECT_THAT(message_of("\x80\x06N."s), HasSubstr("protocol 6"));
  EXPECT_THAT(message_of("\x80\x02I1\n."s), HasSubstr("opcode 73 at byte 2"));
  EXPECT_THAT(message_of("\x80\x02N2."s), HasSubstr("opcode 50"));        // DUP
  EXPECT_THAT(message_of("(i__main__\nx\n."s), HasSubstr("opcode 105"));  // INST runs what it names
  EXPECT_THAT(message_of("\x80\x02\x82\x01."s),
              HasSubstr("opcode 130"));  // EXT1: a registry we have not
}

// Each byte of these would become a tuple.
TEST(Pickle, MoreValuesThanItsBytesAreWorthAreRefused) {
  const std::string hostile = "\x80\x02N" + std::string(100'000, '\x85') + ".";
  EXPECT_THAT(message_of(hostile), HasSubstr("more than 50066 values, which no pickle of"));
  EXPECT_EQ(message_of("\x80\x02N" + std::string(50, '\x85') + "."), "no error");
}

// What opcodes of one or two bytes make grow: nodes, their items, marks, the memo, the stack, one list and many lists.
TEST(Pickle, MemoryIsBoundedByTheBytes) {
  if (!PeakMemory::is_the_programs_own()) GTEST_SKIP() << "memory is the sanitizer's, too";
  constexpr std::size_t kBytes = 4 << 20;
  const auto many = [](const std::string& ops) {
    std::string all;
    while (all.size() < kBytes) all += ops;
    return all;
  };
  for (const std::string& ops :
       {"\x80\x02N" + many("\x85"),
        "\x80\x02" + many("("),
        "\x80\x02" + many(")"),
        "\x80\x02" + many("(t"),
        "\x80\x02N" + many("\x94"),
        "\x80\x02N" + many("2"),
        "\x80\x02Nq"s + '\0' + many("h"s + '\0'),
        "\x80\x02Nq"s + '\0' + "(" + many("h"s + '\0') + "t",
        "\x80\x02Nq"s + '\0' + "]" + many("h"s + '\0' + "a"),
        "\x80\x02]q"s + '\0' + "]q\x01" + many("h"s + '\0' + "h\x01" + "a0"),
        "\x80\x02" + many("](NNNNNNNNe"),
        "\x80\x02" + many("]NaNaNaNaNa")}) {
    const std::string pickle = ops + ".";
    const PeakMemory peak;
    const auto result = read_pickle(pickle, kAllowed);
    EXPECT_LE(peak.growth_bytes(), 14 * static_cast<std::int64_t>(kBytes)) << ops.substr(0, 16);
  }
}

TEST(Pickle, ContainersGrowItemByItem) {
  std::string ops = "]q\x01}q\x02"s + "0";
  for (int i = 0; i < 100; ++i)
    ops += "h\x01" + int_op(i) + "a0" + "h\x02" + int_op(i) + int_op(i * 2) + "s0";
  const std::string bytes = pickle_of(ops + "h\x01h\x02\x86");
  const auto pickle = read_pickle(bytes, kAllowed);

  ASSERT_TRUE(pickle) << pickle.error().what();
  const auto both = pickle->sequence(pickle->root());
  const auto list = pickle->sequence((*both)[0]);
  const auto entries = pickle->entries((*both)[1]);
  ASSERT_TRUE(list && entries);
  ASSERT_EQ(list->size(), 100);
  ASSERT_EQ(entries->size(), 200);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pickle->integer((*list)[i]), i);
    EXPECT_EQ(pickle->integer((*entries)[2 * i]), i);
    EXPECT_EQ(pickle->integer((*entries)[2 * i + 1]), 2 * i);
  }
}

}  // namespace
}  // namespace accel::launcher::pickle_test
