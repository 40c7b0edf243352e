// Optimal string alignment distance: Levenshtein's, with a swap of two neighbours counted as one
// edit, which is the commonest slip of the fingers. Three rows of the table are kept.

#include "runtime/suggest.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace accel {
namespace {

bool is_same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (is_same(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      const bool is_swap =
          i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]);
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  size_t best_edits = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t edits = edits_between(word, candidate);
    if (edits < best_edits && edits < candidate.size()) {
      best = &candidate;
      best_edits = edits;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace accel
