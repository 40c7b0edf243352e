#include "libaccel/api/profiling/operator_calls.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <c10/util/Type.h>

namespace accel::profiling {
namespace {

using torch::autograd::profiler::KinetoEvent;

constexpr std::string_view kMemoryEvent = "[memory]";
constexpr std::string_view kOutOfMemory = "[OutOfMemory]";
constexpr std::array<std::string_view, 8> kHidden = {kMemoryEvent,
                                                     kOutOfMemory,
                                                     "profiler::_record_function_enter",
                                                     "profiler::_record_function_enter_new",
                                                     "profiler::_record_function_exit",
                                                     "aten::is_leaf",
                                                     "aten::output_nr",
                                                     "aten::_version"};
// libkineto::ActivityType
constexpr std::uint8_t kUserAnnotation = 1;
constexpr std::uint8_t kGpuUserAnnotation = 2;

std::string shown_name(std::string name) {
  if (name.starts_with("ProfilerStep#")) return "ProfilerStep*";
  return name.starts_with("_Z") ? c10::demangle(name.c_str()) : name;
}

bool is_host_memory(c10::DeviceType type) {
  return type == c10::DeviceType::CPU || type == c10::DeviceType::MKLDNN ||
         type == c10::DeviceType::IDEEP;
}

// What was taken and given back, by time.
class MemoryRecords {
 public:
  explicit MemoryRecords(const std::vector<KinetoEvent>& events) {
    for (const KinetoEvent& event : events)
      if (event.name() == kMemoryEvent) records_.push_back({&event, event.startNs()});
    std::ranges::stable_sort(records_, {}, &Record::at_ns);
  }

  // Bytes between two times, both included.
  std::int64_t take(std::uint64_t begin_ns, std::uint64_t end_ns) {
    std::int64_t bytes = 0;
    auto record = std::ranges::lower_bound(records_, begin_ns, {}, &Record::at_ns);
    for (; record != records_.end() && record->at_ns <= end_ns; ++record) {
      record->is_taken = true;
      if (is_host_memory(record->event->deviceType())) bytes += record->event->nBytes();
    }
    return bytes;
  }

  template <typename F>
  void for_each_left(F&& visit) const {
    for (const Record& record : records_)
      if (!record.is_taken) visit(*record.event);
  }

 private:
  struct Record {
    const KinetoEvent* event;
    std::uint64_t at_ns;
    bool is_taken = false;
  };
  std::vector<Record> records_;
};

OperatorCall call_of(const KinetoEvent& event, std::uint64_t trace_begin_ns) {
  OperatorCall call;
  call.name = shown_name(event.name());
  call.thread = event.startThreadId();
  call.begin_ns = event.startNs() - trace_begin_ns;
  call.end_ns = event.endNs() - trace_begin_ns;
  call.is_async = event.isAsync() || event.startThreadId() != event.endThreadId();
  call.is_on_cpu = event.deviceType() == c10::DeviceType::CPU;
  call.is_annotation =
      event.activityType() == kUserAnnotation || event.activityType() == kGpuUserAnnotation;
  call.flops = static_cast<std::int64_t>(event.flops());
  const auto shapes = event.shapes();
  call.shapes.assign(shapes.begin(), shapes.end());
  return call;
}

// Memory that no operator took: a moment of its own.
OperatorCall moment_of(const KinetoEvent& event, std::uint64_t trace_begin_ns) {
  OperatorCall call;
  call.name = event.name();
  call.thread = event.startThreadId();
  call.begin_ns = call.end_ns = event.startNs() - trace_begin_ns;
  call.memory = is_host_memory(event.deviceType()) ? event.nBytes() : 0;
  return call;
}

bool begins_before(const OperatorCall& a, const OperatorCall& b) {
  return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
}

// Requires: the calls are in order. Intervals that overlap in part are no parent and child.
void nest(std::vector<OperatorCall>& calls) {
  std::map<std::uint64_t, std::vector<std::size_t>> open;  // by thread: those around the next one
  for (std::size_t i = 0; i < calls.size(); ++i) {
    OperatorCall& call = calls[i];
    if (call.is_async || !call.is_on_cpu) continue;
    std::vector<std::size_t>& around = open[call.thread];
    while (!around.empty()) {
      OperatorCall& parent = calls[around.back()];
      if (call.begin_ns < parent.end_ns && call.end_ns <= parent.end_ns) {
        parent.children.push_back(i);
        call.parent = static_cast<std::ptrdiff_t>(around.back());
        break;
      }
      around.pop_back();
    }
    around.push_back(i);
  }
}

// Those to leave out: the only child of a call of its name. Its children become the parent's.
std::set<std::size_t> lift_repeated(std::vector<OperatorCall>& calls) {
  std::set<std::size_t> lifted;
  std::size_t before = 0;
  do {
    before = lifted.size();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      OperatorCall& call = calls[i];
      if (call.parent < 0 || lifted.contains(i)) continue;
      OperatorCall& parent = calls[static_cast<std::size_t>(call.parent)];
      if (parent.name != call.name || parent.children.size() != 1) continue;
      parent.children = call.children;
      for (const std::size_t child : call.children) calls[child].parent = call.parent;
      lifted.insert(i);
    }
  } while (lifted.size() != before);
  return lifted;
}

void leave_out(std::vector<OperatorCall>& calls, const std::set<std::size_t>& lifted) {
  if (lifted.empty()) return;
  std::vector<std::size_t> place(calls.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) place[i] = lifted.contains(i) ? next : next++;
  std::vector<OperatorCall> kept;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (lifted.contains(i)) continue;
    OperatorCall& call = kept.emplace_back(std::move(calls[i]));
    for (std::size_t& child : call.children) child = place[child];
    if (call.parent >= 0)
      call.parent = static_cast<std::ptrdiff_t>(place[static_cast<std::size_t>(call.parent)]);
  }
  calls = std::move(kept);
}

}  // namespace

std::vector<OperatorCall> operator_calls(const torch::autograd::profiler::ProfilerResult& result) {
  const std::uint64_t trace_begin_ns = result.trace_start_ns();
  MemoryRecords memory(result.events());
  std::vector<OperatorCall> calls;
  for (const KinetoEvent& event : result.events()) {
    if (std::ranges::find(kHidden, event.name()) != kHidden.end() || event.isHiddenEvent())
      continue;
    OperatorCall& call = calls.emplace_back(call_of(event, trace_begin_ns));
    if (call.is_on_cpu) call.memory = memory.take(event.startNs(), event.endNs());
  }
  memory.for_each_left(
      [&](const KinetoEvent& event) { calls.push_back(moment_of(event, trace_begin_ns)); });
  for (const KinetoEvent& event : result.events())
    if (event.name() == kOutOfMemory) calls.push_back(moment_of(event, trace_begin_ns));
  std::ranges::stable_sort(calls, begins_before);
  nest(calls);
  leave_out(calls, lift_repeated(calls));
  return calls;
}

}  // namespace accel::profiling
