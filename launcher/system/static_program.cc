#include "launcher/system/static_program.h"

#include <algorithm>
#include <span>

#include <link.h>
#include <sys/auxv.h>

namespace accel::launcher {

bool is_static_program() {
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(::getauxval(AT_PHDR));
  return std::ranges::none_of(std::span(headers, ::getauxval(AT_PHNUM)),
                              [](const ElfW(Phdr) & header) { return header.p_type == PT_INTERP; });
}

}  // namespace accel::launcher
