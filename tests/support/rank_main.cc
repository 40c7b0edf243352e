// The main() of tests whose bodies run as ranks (rank_group.h).

#include <gmock/gmock.h>

#include "tests/support/rank_server.h"

int main(int argc, char** argv) {
  accel::test::begin_rank_server(argc, argv);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
