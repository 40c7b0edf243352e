// The main() of tests whose bodies run as ranks (rank_group.h).

#include <cstdlib>

#include <gmock/gmock.h>

#include "tests/support/rank_server.h"

int main(int argc, char** argv) {
  // PyTorch's store asks for the name of each client's address, and a name server that does not answer costs 5 s a time.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);
  accel::test::begin_rank_server(argc, argv);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
