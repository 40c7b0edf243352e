#include "libaccel/process/text_comparison.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include "libaccel/process/process_group.h"
#include "libaccel/process/text_gather.h"

namespace accel {

std::vector<std::string> differing_texts(std::string_view text,
                                         ProcessGroup& group,
                                         std::string_view operation) {
  at::Tensor digest = at::empty({2}, at::kLong);
  auto* values = digest.data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(XXH3_64bits(text.data(), text.size()));
  values[1] = static_cast<std::int64_t>(text.size());
  const at::Tensor digests = group.all_gather(digest, operation);
  const auto* all = digests.const_data_ptr<std::int64_t>();
  std::int64_t longest = 0;
  bool all_equal = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    all_equal = all_equal && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    longest = std::max(longest, all[2 * rank + 1]);
  }
  if (all_equal) return {};
  return gather_texts(text, longest, group, operation);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace accel
