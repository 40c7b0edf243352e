// Expanding: an entry is a sequence of parts, literal or bracket; each bracket is a list of ranges.
// The product is built part by part, and its size is known before a name is made, so a short text
// cannot ask for more memory than `most` names.
//
// Compressing: one pass over neighbours. A name is (text before its last number, the number, text
// after); as long as the texts stay the same the numbers are collected, and a number that continues
// the last range, written in that range's width, prolongs it.

#include "runtime/hostlist.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace accel {
namespace {

constexpr std::size_t kMostDigits = 18;  // of a number in a bracket: fits into 64 bits
constexpr std::size_t kLongestName = 255;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
         c == '-';
}

std::string padded(std::uint64_t number, std::size_t width) {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

std::uint64_t number_of(std::string_view digits) {
  std::uint64_t number = 0;
  for (const char c : digits) number = number * 10 + static_cast<std::uint64_t>(c - '0');
  return number;
}

// A number, or a range of them.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 1;

  [[nodiscard]] std::uint64_t size() const { return last - first + 1; }
};

class Expander {
 public:
  Expander(std::string_view text, std::size_t most) : text_(text), most_(most) {}

  Result<std::vector<std::string>> run() {
    while (at_ < text_.size() && !fault_) {
      entry();
      if (!fault_ && at_ < text_.size()) {
        ++at_;  // the comma
        if (at_ == text_.size()) fail("a name is missing after the last ','");
      }
    }
    if (fault_) return *fault_;
    return std::move(hosts_);
  }

 private:
  void fail(const std::string& what) {
    if (fault_) return;
    fault_ = Error(ErrorCode::kInvalidArgument,
                   "host list: " + what + " (character " + std::to_string(at_ + 1) + " of " +
                       std::to_string(text_.size()) + ")",
                   "write it as SLURM does, for example node[01-04,7]");
  }

  // One entry up to its comma: the names so far, times each part.
  void entry() {
    std::vector<std::string> names{""};
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ',' && !fault_) {
      if (text_[at_] == '[') {
        multiply(names, bracket());
      } else if (is_name_character(text_[at_])) {
        for (std::string& name : names) name += text_[at_];
        ++at_;
        if (names.front().size() > kLongestName) fail("a name has more than 255 characters");
      } else {
        fail(text_[at_] == ']' ? "']' without its '['" : "a character that no host name has");
      }
    }
    if (fault_) return;
    if (at_ == begin) return fail("a name is missing before ','");
    if (hosts_.size() + names.size() > most_) return fail_too_many();
    const bool fits = std::all_of(names.begin(), names.end(), [](const std::string& name) {
      return name.size() <= kLongestName;
    });
    if (!fits) return fail("a name has more than 255 characters");
    hosts_.insert(hosts_.end(), names.begin(), names.end());
  }

  void fail_too_many() { fail("more than " + std::to_string(most_) + " hosts"); }

  std::vector<Range> bracket() {
    std::vector<Range> ranges;
    do {
      ++at_;  // '[' or ','
      const std::optional<std::string_view> first = digits();
      if (!first) return {};
      Range range{number_of(*first), number_of(*first), first->size()};
      if (at_ < text_.size() && text_[at_] == '-') {
        ++at_;
        const std::optional<std::string_view> last = digits();
        if (!last) return {};
        range.last = number_of(*last);
        if (range.last < range.first) {
          fail("a range runs backwards");
          return {};
        }
      }
      ranges.push_back(range);
    } while (at_ < text_.size() && text_[at_] == ',');
    if (at_ == text_.size() || text_[at_] != ']') {
      fail(at_ == text_.size() ? "'[' without its ']'"
                               : "a number, ',', '-' or ']' should be here");
      return {};
    }
    ++at_;
    return ranges;
  }

  std::optional<std::string_view> digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    const std::size_t length = at_ - begin;
    if (length == 0 || length > kMostDigits) {
      fail(length == 0 ? "a number should be here" : "a number has more than 18 digits");
      return std::nullopt;
    }
    return text_.substr(begin, length);
  }

  void multiply(std::vector<std::string>& names, const std::vector<Range>& ranges) {
    if (fault_) return;
    std::uint64_t factor = 0;
    for (const Range& range : ranges) {
      // Before the sum can overflow: one range alone is too much already.
      if (range.size() > most_ || (factor += range.size()) > most_) return fail_too_many();
    }
    if (names.size() * factor > most_) return fail_too_many();
    if (names.front().size() > kLongestName) return fail("a name has more than 255 characters");
    std::vector<std::string> product;
    product.reserve(names.size() * factor);
    for (const std::string& name : names) {
      for (const Range& range : ranges) {
        for (std::uint64_t number = range.first; number <= range.last; ++number) {
          product.push_back(name + padded(number, range.width));
        }
      }
    }
    names = std::move(product);
  }

  std::string_view text_;
  std::size_t most_;
  std::size_t at_ = 0;
  std::vector<std::string> hosts_;
  std::optional<Error> fault_;
};

// A name around its last number; `digits` is empty when it has none that fits.
struct Parts {
  std::string_view before;
  std::string_view digits;
  std::string_view after;
};

Parts parts_of(std::string_view name) {
  std::size_t end = name.size();
  while (end > 0 && !is_digit(name[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1]) && end - begin < kMostDigits) --begin;
  return {name.substr(0, begin), name.substr(begin, end - begin), name.substr(end)};
}

class Compressor {
 public:
  void add(std::string_view name) {
    const Parts parts = parts_of(name);
    const bool joins = !ranges_.empty() && !parts.digits.empty() && parts.before == before_ &&
                       parts.after == after_;
    if (!joins) flush();
    if (parts.digits.empty()) {
      append(name);
      return;
    }
    before_ = parts.before;
    after_ = parts.after;
    const std::uint64_t number = number_of(parts.digits);
    if (joins) {
      Range& last = ranges_.back();
      if (number == last.last + 1 && padded(number, last.width) == parts.digits) {
        last.last = number;
        return;
      }
    }
    ranges_.push_back({number, number, parts.digits.size()});
  }

  std::string finish() {
    flush();
    return std::move(text_);
  }

 private:
  void append(std::string_view entry) {
    if (!text_.empty()) text_ += ',';
    text_ += entry;
  }

  void flush() {
    if (ranges_.empty()) return;
    append(before_);
    const bool is_single = ranges_.size() == 1 && ranges_.front().size() == 1;
    if (!is_single) text_ += '[';
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const Range& range = ranges_[i];
      if (i > 0) text_ += ',';
      text_ += padded(range.first, range.width);
      if (range.size() > 1) text_ += '-' + padded(range.last, range.width);
    }
    if (!is_single) text_ += ']';
    text_ += after_;
    ranges_.clear();
  }

  std::string text_;
  std::string_view before_;
  std::string_view after_;
  std::vector<Range> ranges_;
};

}  // namespace

bool is_host_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t most) {
  return Expander(text, most).run();
}

std::string compress_hostlist(std::span<const std::string> hosts) {
  Compressor compressor;
  for (const std::string& host : hosts) compressor.add(host);
  return compressor.finish();
}

}  // namespace accel
