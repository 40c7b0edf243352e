// LineFilter: the lines of one stream that have one of some texts in them.
//
// Threads:  one; pure.
// Cost:     the bytes of an unfinished line are held, at most kMostHeld: a longer one is judged by its first kMostHeld bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accel::supervisor {

class LineFilter {
 public:
  static constexpr std::size_t kMostHeld = 64 * 1024;

  // `header` stands before each line that matches.
  LineFilter(std::vector<std::string> texts, std::string header)
      : texts_(std::move(texts)), header_(std::move(header)) {}

  // Returns the lines that match, each with its newline.
  [[nodiscard]] std::string feed(std::string_view bytes);
  // The stream has ended: its last line, if it had no newline and matches.
  [[nodiscard]] std::string finish();

 private:
  enum class Judged { kNot, kMatches, kDiffers };  // of the line that is under way

  [[nodiscard]] bool matches(std::string_view line) const;
  void judge_held(std::string& matched);

  std::vector<std::string> texts_;
  std::string header_;
  std::string held_;
  Judged judged_ = Judged::kNot;
};

}  // namespace accel::supervisor
