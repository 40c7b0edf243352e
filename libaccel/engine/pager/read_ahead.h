// ReadAhead: weights that lie in files are in memory before operators use them.
//
// A thread reads the next weights in the order of the forward before (forward_order.h) while operators compute. What may be in
// memory is limited: then the weight whose next use is furthest away leaves first (paging_policy.h), which for a model that does not fit
// is the one that was just used, so a part of it stays from one forward to the next. An operator whose weight is not there
// yet waits for it, instead of fetching it page by page.
//
// Operators that read rows of a table (embedding) do not wait, and their table is not read ahead: its rows are read where they lie.
//
// In a process that was forked from the one that made it, weights are read where they lie: there is no thread.
//
// Threads:  operators on any thread.
// Cost:     a thread that sleeps when there is nothing to read; a lock for each use of another weight than the last one.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel::pager {

// Pages of one weight.
struct MappedWeight {
  std::byte* begin = nullptr;  // of a page
  std::size_t bytes = 0;       // whole pages
};

class ReadAhead {
 public:
  // max_bytes: of weights in memory. What two of the largest need is always granted: one is used while the other comes.
  ReadAhead(std::vector<MappedWeight> weights, std::size_t max_bytes);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // An operator is about to read all of the weight, or some rows of it.
  void use(std::size_t weight);
  void use_rows(std::size_t weight);

  // Its pages are about to go away. Waits until the thread has left them.
  void retire(std::size_t weight);

  struct Statistics {
    std::size_t num_reads = 0;
    std::size_t num_waits = 0;  // uses of weights that were not there yet
    std::size_t peak_bytes = 0;
  };
  [[nodiscard]] Statistics statistics() const;

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

// The same weights, read ahead in that order at first. Those of tensor_in_file() alone; others are given back as they are.
[[nodiscard]] std::vector<at::Tensor> read_ahead(
    std::span<const at::Tensor> weights,
    std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

}  // namespace accel::pager
