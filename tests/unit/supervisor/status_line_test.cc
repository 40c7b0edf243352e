#include "runtime/supervisor/logs/status_line.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::status_line_test {
namespace {

// A terminal of one row: what stands in it, and where the cursor is.
struct Row {
  StatusLine line;
  std::string written;

  void show() {
    const std::string bytes = line.update(at_line_start());
    written += bytes;
    if (!bytes.empty()) line.drew(at_line_start());
  }
  void output(const std::string& text) {
    written += line.erase();
    line.note_output(text);
    written += text;
    output_ += text;
    show();
  }
  [[nodiscard]] bool at_line_start() const { return output_.empty() || output_.back() == '\n'; }

 private:
  std::string output_;
};

TEST(StatusLine, IsErasedBeforeOutputAndDrawnAgainBehindIt) {
  Row row;
  row.line.set("step 1", false);
  row.show();

  row.output("a\n");

  EXPECT_EQ(row.written, "\r\x1b[Kstep 1\r\x1b[Ka\n\r\x1b[Kstep 1");
}

TEST(StatusLine, IsNotWrittenAgainWhileItStandsThere) {
  Row row;
  row.line.set("step 1", false);
  row.show();
  row.written.clear();

  row.line.set("step 1", false);
  row.show();

  EXPECT_EQ(row.written, "");
}

TEST(StatusLine, WaitsForTheEndOfAnUnfinishedLine) {
  Row row;
  row.output("name? ");
  row.line.set("step 1", false);
  row.show();
  EXPECT_EQ(row.written, "name? ");

  row.output("you\n");

  EXPECT_EQ(row.written, "name? you\n\r\x1b[Kstep 1");
}

TEST(StatusLine, NeverComesBackBesideAWorkerThatDrawsALineOfItsOwn) {
  Row row;
  row.line.set("step 1", false);
  row.output("\r 10%");
  row.output("\r 20%\n");

  row.line.set("step 2", false);
  row.show();

  EXPECT_EQ(row.written, "\r 10%\r 20%\n");
}

TEST(StatusLine, DoesSoWhereItIsAskedTo) {
  Row row;
  row.output("\r 10%\n");

  row.line.set("step 2", true);
  row.show();

  EXPECT_EQ(row.written, "\r 10%\n\r\x1b[Kstep 2");
}

TEST(StatusLine, TheReturnsOfATerminalsLineEndsAreNone) {
  Row row;
  row.line.set("step 1", false);
  row.output("a\r");
  row.output("\nb\r\r\n");

  EXPECT_TRUE(row.written.ends_with("b\r\r\n\r\x1b[Kstep 1"));
}

TEST(StatusLine, AnEmptyOneErasesIt) {
  Row row;
  row.line.set("step 1", false);
  row.show();
  row.written.clear();

  row.line.set("", false);
  row.show();

  EXPECT_EQ(row.written, "\r\x1b[K");
}

}  // namespace
}  // namespace accel::supervisor::status_line_test
