// What a rank says: nothing, or "CODE\nMESSAGE\nREMEDY", the code by its number; all ranks run the same library.

#include "libaccel/process/joint_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <accel/error.h>

#include "libaccel/process/process_group.h"
#include "libaccel/process/text_gather.h"

namespace accel {
namespace {

constexpr std::int64_t kErrorBytes = 1024;

std::string error_text(const Error& error) {
  std::string message = error.message();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return std::to_string(static_cast<int>(error.code())) + "\n" + message + "\n" + error.remedy();
}

Error error_of(const std::string& text, std::size_t rank) {
  const std::size_t message = text.find('\n') + 1;
  const std::size_t remedy = text.find('\n', message);
  return Error(static_cast<ErrorCode>(std::stoi(text)),
               "rank " + std::to_string(rank) + ": " + text.substr(message, remedy - message),
               remedy == std::string::npos ? "" : text.substr(remedy + 1));
}

}  // namespace

void check_together(const std::function<void()>& check,
                    ProcessGroup& group,
                    std::string_view operation) {
  std::optional<Error> own;
  std::exception_ptr foreign;
  try {
    check();
  } catch (const Error& error) {
    own = error;
  } catch (const std::exception& error) {
    own.emplace(ErrorCode::kInternal, error.what());
    foreign = std::current_exception();
  }
  const std::vector<std::string> said =
      gather_texts(own ? error_text(*own) : "", kErrorBytes, group, operation);
  if (foreign) std::rethrow_exception(foreign);
  if (own) throw Error(*own);
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (!said[rank].empty()) throw error_of(said[rank], rank);
  }
}

}  // namespace accel
