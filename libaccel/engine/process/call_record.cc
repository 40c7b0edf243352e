#include "libaccel/engine/process/call_record.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <xxhash.h>

#include <accel/channel.h>

#include "libaccel/engine/process/supervisor_link.h"

namespace accel::detail {
namespace {

// "gather: all_gather 16 Byte". What does not fit is cut off.
class CallText {
 public:
  CallText& operator<<(std::string_view part) noexcept {
    const std::size_t length = std::min(part.size(), text_.size() - length_);
    std::copy_n(part.data(), length, text_.data() + length_);
    length_ += length;
    return *this;
  }
  CallText& operator<<(std::int64_t number) noexcept {
    const auto end = std::to_chars(text_.data() + length_, text_.data() + text_.size(), number).ptr;
    length_ = static_cast<std::size_t>(end - text_.data());
    return *this;
  }
  [[nodiscard]] std::string_view view() const noexcept { return {text_.data(), length_}; }

 private:
  std::array<char, 128> text_{};
  std::size_t length_ = 0;
};

}  // namespace

void record_call(std::string_view kind,
                 std::string_view operation,
                 std::int64_t elements,
                 std::optional<at::ScalarType> type) noexcept {
  WorkerChannel* const channel = supervisor_channel();
  if (channel == nullptr) return;
  CallText text;
  text << kind;
  if (type) text << " " << elements << " " << c10::toString(*type);
  text << " (" << operation << ")";
  channel->collective(XXH3_64bits(text.view().data(), text.view().size()), text.view());
}

}  // namespace accel::detail
