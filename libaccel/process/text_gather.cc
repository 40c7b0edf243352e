#include "libaccel/process/text_gather.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/zeros.h>

#include "libaccel/process/process_group.h"

namespace accel {

std::vector<std::string> gather_texts(std::string_view text,
                                      std::int64_t longest,
                                      ProcessGroup& group,
                                      std::string_view operation) {
  const auto bytes = static_cast<std::size_t>(longest);
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), std::min(text.size(), bytes));
  const at::Tensor all = group.all_gather(padded, operation);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, std::find(begin, begin + bytes, '\0'));
  }
  return texts;
}

std::string refusal(std::string_view why) {
  return "!" + std::string(why);
}

std::optional<std::string> refusal_of(const std::vector<std::string>& said, std::size_t rank) {
  if (!said[rank].starts_with('!')) return std::nullopt;
  return "rank " + std::to_string(rank) + ": " + said[rank].substr(1);
}

}  // namespace accel
