#include "libaccel/engine/shm/memory/process_stat.h"

#include <sstream>
#include <string>

namespace accel::shm {

std::uint64_t start_time_in(std::istream& stat) {
  std::string text;
  std::getline(
      stat, text, '\0');  // unlike an iterator over its buffer, throws nothing when the read fails
  // The name, in parentheses, may hold anything. The state is the third field, the start time the 22nd.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number < 22; ++number) fields >> field;
  std::uint64_t start_time = 0;
  fields >> start_time;
  return start_time;
}

}  // namespace accel::shm
