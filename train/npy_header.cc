#include "train/npy_header.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "runtime/printable.h"

namespace accel::train {
namespace {

// What stands behind 'key': in the dictionary, up to a comma that is in no brackets, or the end.
std::optional<std::string_view> entry_of(std::string_view dictionary, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "':";
  const std::size_t found = dictionary.find(quoted);
  if (found == std::string_view::npos) return std::nullopt;
  std::string_view rest = dictionary.substr(found + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const char closing = rest.starts_with('(') ? ')' : ',';
  const std::size_t end = rest.find(closing);
  if (end == std::string_view::npos) return std::nullopt;
  return rest.substr(0, closing == ')' ? end + 1 : end);
}

// "(3, 4)", "(5,)" or "()"; false for what is none, or has too many elements.
bool read_shape(std::string_view text, NpyHeader& header) {
  std::size_t at = 1;
  while (at < text.size() && text[at] != ')') {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    std::uint64_t size = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), size);
    if (error != std::errc() || __builtin_mul_overflow(header.count, size, &header.count))
      return false;
    header.shape.push_back(size);
    at = static_cast<std::size_t>(end - text.data());
  }
  return true;
}

template <typename Number>
std::size_t length_at(std::string_view head, std::size_t offset) {
  Number number{};
  std::memcpy(&number, head.data() + offset, sizeof number);
  return number;
}

}  // namespace

Result<NpyHeader> read_npy_header(std::string_view head,
                                  const std::string& name,
                                  const std::string& remedy) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr std::size_t kShort = 10;  // magic, version, length of 16 bits
  constexpr std::size_t kLong = 12;   // of 32 bits, from version 2 on
  const auto fail = [&](const std::string& reason) {
    return Error(ErrorCode::kInvalidArgument, name + " " + reason, remedy);
  };
  if (head.size() < kLong || !head.starts_with(kMagic)) return fail("is no .npy file");
  const bool is_first = head[kMagic.size()] == 1;
  const std::size_t begin = is_first ? kShort : kLong;
  const std::size_t length = is_first ? length_at<std::uint16_t>(head, kShort - 2)
                                      : length_at<std::uint32_t>(head, kShort - 2);
  if (length > head.size() - begin)
    return fail("has a header of " + std::to_string(length) + " bytes: it is cut or damaged");
  const std::string_view dictionary = head.substr(begin, length);
  const auto descr = entry_of(dictionary, "descr");
  const auto order = entry_of(dictionary, "fortran_order");
  const auto shape = entry_of(dictionary, "shape");
  if (!descr || !order || !shape) return fail("has a header without descr, fortran_order or shape");
  if (*order != "False") return fail("is in Fortran's order, expected that of C");
  NpyHeader header{.offset = begin + length};
  if (!read_shape(*shape, header)) return fail("has the shape " + printable(std::string(*shape)));
  header.descr = *descr;
  if (header.descr.size() >= 2 && header.descr.front() == '\'' && header.descr.back() == '\'')
    header.descr = header.descr.substr(1, header.descr.size() - 2);
  return header;
}

}  // namespace accel::train
