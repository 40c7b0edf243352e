// flooder: a worker that writes as fast as it can, for bench/logs_bench.py.
//
//   flooder --bytes N [--write SIZE] [--times FOLDER] [--seconds S]
//
// Writes N bytes (or for S seconds) to stdout in write()s of SIZE. The bytes are a block of 1 MiB over and
// over: lines of 128 bytes that name the rank and their number in the block, so that a reader can tell a
// lost, doubled or mixed byte. With --times it leaves FOLDER/<rank>.json: when the first write() began and
// the last one ended (CLOCK_MONOTONIC), and percentiles of how long a write() took.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLine = 128;
constexpr std::size_t kBlock = 1024 * 1024;

struct Options {
  std::size_t bytes = 0;
  std::size_t write = 64 * 1024;
  double seconds = 0;
  std::string times;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--bytes") options.bytes = std::strtoull(value, nullptr, 10);
    if (name == "--write") options.write = std::strtoull(value, nullptr, 10);
    if (name == "--seconds") options.seconds = std::strtod(value, nullptr);
    if (name == "--times") options.times = value;
  }
  return options;
}

std::string make_block(const std::string& rank) {
  std::string block;
  block.reserve(kBlock);
  for (std::size_t line = 0; block.size() < kBlock; ++line) {
    std::string text = "rank " + rank + " line " + std::to_string(line) + " ";
    text.resize(kLine - 1, static_cast<char>('a' + line % 26));
    block += text + '\n';
  }
  return block;
}

long long nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const char* rank = std::getenv("RANK");
  const std::string name = rank != nullptr ? rank : "0";
  const std::string block = make_block(name);

  std::vector<float> took;  // microseconds
  took.reserve(options.times.empty() ? 0 : 1 << 20);
  const Clock::time_point began = Clock::now();
  Clock::time_point now = began;
  for (std::size_t done = 0; options.bytes > 0
                                 ? done < options.bytes
                                 : now - began < std::chrono::duration<double>(options.seconds);) {
    const std::size_t at = done % kBlock;
    std::size_t size = std::min(options.write, kBlock - at);
    if (options.bytes > 0) size = std::min(size, options.bytes - done);
    const Clock::time_point before = now;
    const ssize_t written = ::write(STDOUT_FILENO, block.data() + at, size);
    if (written <= 0) return 1;
    now = Clock::now();
    done += static_cast<std::size_t>(written);
    if (took.size() < took.capacity()) {
      took.push_back(std::chrono::duration<float, std::micro>(now - before).count());
    }
  }
  if (options.times.empty()) return 0;

  std::sort(took.begin(), took.end());
  const auto percentile = [&took](double part) {
    return took.empty()
               ? 0.0F
               : took[static_cast<std::size_t>(part * static_cast<double>(took.size() - 1))];
  };
  std::ofstream(options.times + "/" + name + ".json")
      << "{\"began\": " << nanoseconds(began) << ", \"ended\": " << nanoseconds(now)
      << ", \"writes\": " << took.size() << ", \"p50_us\": " << percentile(0.50)
      << ", \"p99_us\": " << percentile(0.99) << "}\n";
  return 0;
}
