#include "launcher/start/ssh/hostfile.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/suggest.h"
#include "runtime/text/joined.h"
#include "runtime/text/number_text.h"
#include "runtime/trimmed.h"

namespace accel::launcher {
namespace {

constexpr int kMostSlots = 1024;  // as kMaxProcesses

// Up to `separator`, which is taken off `rest` too.
std::string_view next_part(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

// Empty parts count: "a@" has two.
std::vector<std::string_view> all_parts(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (bool is_more = true; is_more;) {
    is_more = text.find(separator) != std::string_view::npos;
    parts.push_back(next_part(text, separator));
  }
  return parts;
}

// The number that `text` begins with; std::nullopt: none, or above `most`.
std::optional<int> leading_number(std::string_view text, int most) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end == text.data() || number < 0 || number > most)
    return std::nullopt;
  return number;
}

// "worker-1 slots=4".
std::optional<HostSlots> parse_line(std::string_view line) {
  const size_t name_end = line.find_first_of(kTypedBlanks);
  if (name_end == std::string_view::npos || line.front() == '-') return std::nullopt;
  constexpr std::string_view kSlots = "slots=";
  const std::string_view rest = trimmed(line.substr(name_end), kTypedBlanks);
  if (!rest.starts_with(kSlots)) return std::nullopt;
  const auto number = leading_number(rest.substr(kSlots.size()), kMostSlots);
  if (!number || *number == 0) return std::nullopt;
  HostSlots host{std::string(line.substr(0, name_end)), {}};
  host.slots.resize(static_cast<size_t>(*number));
  std::iota(host.slots.begin(), host.slots.end(), 0);
  return host;
}

Error bad_line(const std::string& path, int number, std::string_view line) {
  return Error(
      ErrorCode::kConfigSyntax,
      path + ":" + std::to_string(number) + ": Hostfile contains a bad entry: " + std::string(line),
      "write each host as `NAME slots=N`, N from 1 to " + std::to_string(kMostSlots));
}

HostSlots* find_host(std::vector<HostSlots>& hosts, std::string_view name) {
  const auto found =
      std::ranges::find_if(hosts, [&](const HostSlots& host) { return host.name == name; });
  return found == hosts.end() ? nullptr : &*found;
}

Error bad_filter(const std::string& message) {
  return Error(ErrorCode::kInvalidArgument,
               message,
               "write filters as in worker-1@worker-2:0,2, with hosts and slots of the hostfile");
}

Error unknown_host(std::string_view name, const std::vector<HostSlots>& hosts) {
  std::vector<std::string> known;
  for (const HostSlots& host : hosts) known.push_back(host.name);
  const auto guess = nearest(std::string(name), known);
  return bad_filter("Hostname '" + std::string(name) + "' not found in hostfile" +
                    (guess ? ", did you mean " + *guess + "?" : ""));
}

// The slots that "0,2" names, each of them one of `host`.
Result<std::vector<int>> named_slots(std::string_view list, const HostSlots& host) {
  std::vector<int> slots;
  for (const std::string_view text : all_parts(list, ',')) {
    const auto slot = leading_number(text, kMostSlots);
    if (!slot || std::to_string(*slot) != text || !std::ranges::count(host.slots, *slot)) {
      return bad_filter("No slot '" + std::string(text) + "' specified on host '" + host.name +
                        "', which has " + std::to_string(host.slots.size()));
    }
    slots.push_back(*slot);
  }
  return slots;
}

// What `filter` names, by host.
Result<std::vector<HostSlots>> named_hosts(std::vector<HostSlots>& hosts, std::string_view filter) {
  std::vector<HostSlots> named;
  for (std::string_view part : all_parts(filter, '@')) {
    const bool is_whole = part.find(':') == std::string_view::npos;
    const std::string_view name = next_part(part, ':');
    const HostSlots* const host = find_host(hosts, name);
    if (host == nullptr) return unknown_host(name, hosts);
    const auto slots = is_whole ? Result<std::vector<int>>(host->slots) : named_slots(part, *host);
    if (!slots) return slots.error();
    HostSlots* const before = find_host(named, name);
    HostSlots& entry = before != nullptr ? *before : named.emplace_back(HostSlots{host->name, {}});
    entry.slots.insert(entry.slots.end(), slots->begin(), slots->end());
  }
  return named;
}

}  // namespace

std::string slot_list(const std::vector<int>& slots) {
  return joined(slots, ",", [](int slot) { return std::to_string(slot); });
}

Result<std::vector<HostSlots>> parse_hostfile(std::string_view text, const std::string& path) {
  std::vector<HostSlots> hosts;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = trimmed(next_part(text, '\n'), kTypedBlanks);
    if (line.empty() || line.front() == '#') continue;
    std::optional<HostSlots> host = parse_line(line);
    if (!host) return bad_line(path, number, line);
    if (find_host(hosts, host->name) != nullptr) {
      return Error(ErrorCode::kConfigSyntax,
                   path + ":" + std::to_string(number) +
                       ": Hostfile contains multiple entries for " + host->name,
                   "write each host once, with all its slots");
    }
    hosts.push_back(*std::move(host));
  }
  if (!hosts.empty()) return hosts;
  return Error(ErrorCode::kConfigSyntax,
               path + ": Hostfile is empty or not formatted correctly",
               "write each host as `NAME slots=N`");
}

Result<std::vector<HostSlots>> filter_hosts(std::vector<HostSlots> hosts,
                                            std::string_view inclusion,
                                            std::string_view exclusion) {
  if (inclusion.empty() && exclusion.empty()) return hosts;
  if (!inclusion.empty() && !exclusion.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "--deepspeed_inclusion_filter and --deepspeed_exclusion_filter exclude each other",
                 "leave one of them out");
  }
  auto named = named_hosts(hosts, inclusion.empty() ? exclusion : inclusion);
  if (!named) return std::move(named).error();
  for (HostSlots& host : hosts) {
    const HostSlots* const entry = find_host(*named, host.name);
    std::erase_if(host.slots, [&](int slot) {
      const bool is_named = entry != nullptr && std::ranges::count(entry->slots, slot) > 0;
      return is_named == inclusion.empty();
    });
  }
  std::erase_if(hosts, [](const HostSlots& host) { return host.slots.empty(); });
  if (!hosts.empty()) return hosts;
  return bad_filter("--deepspeed_exclusion_filter '" + std::string(exclusion) +
                    "' leaves no host of the hostfile");
}

}  // namespace accel::launcher
