// Whom nodes follow when their coordinator names another one.

#include "launcher/cluster/meeting/meeting_place.h"

#include <gtest/gtest.h>

namespace accel::cluster::meeting_place_test {
namespace {

TEST(MeetingPlace, WithCertificatesALeaderMayBeAnywhere) {
  EXPECT_TRUE(may_follow("10.0.0.7:29400", /*is_insecure=*/false, /*is_open=*/false));
  EXPECT_TRUE(may_follow("[fd00::7]:29400", false, false));
}

TEST(MeetingPlace, WithoutCertificatesALeaderIsOnThisMachineUnlessTheJobIsOpen) {
  EXPECT_TRUE(may_follow("127.0.0.1:29400", /*is_insecure=*/true, /*is_open=*/false));
  EXPECT_TRUE(may_follow("[::1]:29400", true, false));
  EXPECT_FALSE(may_follow("10.0.0.7:29400", true, false));
  EXPECT_TRUE(may_follow("10.0.0.7:29400", true, /*is_open=*/true));
}

TEST(MeetingPlace, WhatIsNoAddressIsNotFollowed) {
  for (const char* text : {"", "gpu-01", "10.0.0.7", "gpu-01:x"}) {
    EXPECT_FALSE(may_follow(text, false, true)) << text;
  }
}

}  // namespace
}  // namespace accel::cluster::meeting_place_test
