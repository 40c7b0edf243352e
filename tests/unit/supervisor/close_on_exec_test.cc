#include "runtime/supervisor/kernel/close_on_exec.h"

#include <algorithm>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor::close_on_exec_test {
namespace {

bool is_marked(const UniqueFd& fd) {
  return (::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0;
}

// As many as do not fit into one portion of the folder; those of the test itself are below them.
std::vector<UniqueFd> open_many() {
  std::vector<UniqueFd> opened;
  for (int i = 0; i < 300; ++i) opened.emplace_back(::fcntl(0, F_DUPFD, 100));
  return opened;
}

void expect_all_marked_but_the_first(bool (*mark_from)(int first)) {
  const std::vector<UniqueFd> opened = open_many();
  ASSERT_TRUE(opened.back());

  ASSERT_TRUE(mark_from(opened[1].get()));

  EXPECT_FALSE(is_marked(opened.front()));
  EXPECT_TRUE(std::all_of(opened.begin() + 1, opened.end(), is_marked));
}

TEST(CloseOnExecTest, MarksAllFromTheFirstOnAsOlderKernelsNeedIt) {
  expect_all_marked_but_the_first([](int first) { return close_on_exec_one_by_one(first); });
}

TEST(CloseOnExecTest, MarksAllFromTheFirstOnInOneCall) {
  expect_all_marked_but_the_first([](int first) { return close_on_exec_from(first); });
}

}  // namespace
}  // namespace accel::supervisor::close_on_exec_test
