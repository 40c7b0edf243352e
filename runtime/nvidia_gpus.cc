#include "runtime/nvidia_gpus.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/trimmed.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpace = " \t\r\n";

std::string read_small_file(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// The value behind "Model:" in the file `information` of a GPU.
std::string field_of(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + name.size());
  return std::string(trimmed(text.substr(0, text.find('\n')), kSpace));
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// 535.129.03 as numbers; empty when it is no version.
std::vector<int> version_numbers(std::string_view text) {
  std::vector<int> numbers;
  while (true) {
    const std::size_t dot = text.find('.');
    const auto number = parse_number(text.substr(0, dot));
    if (!number) return {};
    numbers.push_back(*number);
    if (dot == std::string_view::npos) return numbers;
    text.remove_prefix(dot + 1);
  }
}

}  // namespace

std::string driver_version_in(std::string_view text) {
  std::istringstream words{std::string(text.substr(0, text.find('\n')))};
  for (std::string word; words >> word;) {
    if (version_numbers(word).size() >= 2) return word;
  }
  return "";
}

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int kMost = 1 << 20;
  std::vector<int> cpus;
  text = trimmed(text, kSpace);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::size_t dash = part.find('-');
    const auto first = parse_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last > kMost) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    if (part.size() == text.size()) break;
    text.remove_prefix(part.size() + 1);
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

NvidiaMachine read_nvidia_machine(const std::string& proc, const std::string& pci) {
  NvidiaMachine machine;
  machine.driver_version = driver_version_in(read_small_file(fs::path(proc) / "version"));
  std::error_code failure;
  for (fs::directory_iterator gpu(fs::path(proc) / "gpus", failure), end; !failure && gpu != end;
       gpu.increment(failure)) {
    const std::string address = gpu->path().filename().string();
    const std::string information = read_small_file(gpu->path() / "information");
    machine.gpus.push_back(
        {.name = field_of(information, "Model:"),
         .pci_address = address,
         .cpus = parse_cpu_list(read_small_file(fs::path(pci) / address / "local_cpulist"))});
  }
  std::sort(machine.gpus.begin(), machine.gpus.end(), [](const NvidiaGpu& a, const NvidiaGpu& b) {
    return a.pci_address < b.pci_address;
  });
  return machine;
}

bool lacks_peer_access(const NvidiaMachine& machine) {
  constexpr std::string_view kSeries = "RTX 40";
  const std::vector<int> mended = {550, 40, 7};
  const std::vector<int> driver = version_numbers(machine.driver_version);
  return machine.gpus.size() > 1 && !driver.empty() && driver < mended &&
         std::any_of(machine.gpus.begin(), machine.gpus.end(), [&](const NvidiaGpu& gpu) {
           return gpu.name.find(kSeries) != std::string::npos;
         });
}

EnvMap peer_access_variables(const NvidiaMachine& machine, const EnvMap& environment) {
  EnvMap variables;
  if (!lacks_peer_access(machine)) return variables;
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
    if (!environment.contains(name)) variables[name] = "1";
  }
  return variables;
}

const NvidiaGpu* visible_gpu(const NvidiaMachine& machine, const EnvMap& environment, int index) {
  std::optional<int> number = index;
  if (const auto visible = environment.find("CUDA_VISIBLE_DEVICES"); visible != environment.end()) {
    std::istringstream entries(visible->second);
    std::string entry;
    number.reset();
    for (int i = 0; i <= index; ++i) {
      if (!std::getline(entries, entry, ',')) return nullptr;
    }
    number = parse_number(trimmed(entry, kSpace));
  }
  if (!number || *number < 0 || *number >= static_cast<int>(machine.gpus.size())) return nullptr;
  return &machine.gpus[static_cast<std::size_t>(*number)];
}

}  // namespace accel
