// Each DT_NEEDED of the dynamic section is the offset of a name in the table of strings. The one for `name` gets the offset of
// `instead`: two that are the same are one to the loader. No byte moves, and the table of strings stays as it is.

#include "libaccel/exported/shared_library.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::exported {
namespace {

constexpr std::size_t kMostDynamicBytes = std::size_t{1} << 20;

class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}

  template <typename Item>
  bool read(std::uint64_t offset, Item& item) const {
    return ::pread(fd_.get(), &item, sizeof(Item), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof(Item));
  }
  template <typename Item>
  bool write(std::uint64_t offset, const Item& item) const {
    return ::pwrite(fd_.get(), &item, sizeof(Item), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof(Item));
  }
  [[nodiscard]] bool has_text(std::uint64_t offset, const std::string& text) const {
    std::string found(text.size() + 1, 'x');
    return ::pread(fd_.get(), found.data(), found.size(), static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(found.size()) &&
           found.back() == '\0' && found.starts_with(text);
  }

 private:
  UniqueFd fd_;
};

std::vector<Elf64_Phdr> segments_of(const ElfFile& file) {
  Elf64_Ehdr head{};
  std::vector<Elf64_Phdr> segments;
  if (!file.read(0, head) ||
      std::string_view(reinterpret_cast<char*>(head.e_ident), SELFMAG) != ELFMAG ||
      head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof(Elf64_Phdr))
    return segments;
  segments.resize(head.e_phnum);
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (!file.read(head.e_phoff + i * sizeof(Elf64_Phdr), segments[i])) return {};
  return segments;
}

// Where in the file an address of the loaded library comes from.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& segments,
                                       Elf64_Addr address) {
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  return std::nullopt;
}

}  // namespace

bool is_whole_library(const std::filesystem::path& library) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(library, error);
  const std::vector<Elf64_Phdr> segments = segments_of(ElfFile(library));
  const auto is_within = [&](const Elf64_Phdr& segment) {
    return segment.p_type != PT_LOAD ||
           (segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset);
  };
  return !error && !segments.empty() && std::ranges::all_of(segments, is_within);
}

void need_instead(const std::filesystem::path& library,
                  const std::string& name,
                  const std::string& instead) {
  const ElfFile file(library);
  const std::vector<Elf64_Phdr> segments = segments_of(file);
  std::vector<std::pair<std::uint64_t, Elf64_Dyn>> entries;  // with where they stand in the file
  std::optional<std::uint64_t> strings;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC || segment.p_filesz > kMostDynamicBytes) continue;
    for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= segment.p_filesz;
         at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry{};
      if (!file.read(segment.p_offset + at, entry) || entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_STRTAB) strings = offset_of(segments, entry.d_un.d_ptr);
      if (entry.d_tag == DT_NEEDED) entries.emplace_back(segment.p_offset + at, entry);
    }
  }
  if (!strings) return;
  const auto asks_for = [&](const std::string& wanted) {
    return std::ranges::find_if(entries, [&](const auto& entry) {
      return file.has_text(*strings + entry.second.d_un.d_val, wanted);
    });
  };
  const auto from = asks_for(name);
  const auto to = asks_for(instead);
  if (from == entries.end() || to == entries.end()) return;
  from->second.d_un.d_val = to->second.d_un.d_val;
  (void)file.write(from->first, from->second);  // else the loader says what is missing
}

}  // namespace accel::exported
