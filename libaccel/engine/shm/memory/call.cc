#include "libaccel/engine/shm/memory/call.h"

#include <algorithm>

#include "runtime/printable.h"

namespace accel::shm {
namespace {

constexpr std::array<const char*, 13> kKindNames = {"nothing",
                                                    "barrier",
                                                    "all_reduce",
                                                    "reduce",
                                                    "reduce_scatter",
                                                    "broadcast",
                                                    "all_gather",
                                                    "gather",
                                                    "scatter",
                                                    "all_to_all",
                                                    "monitored barrier",
                                                    "all_reduce of pieces",
                                                    "reduce_scatter of pieces"};
static_assert(kKindNames.size() == static_cast<std::size_t>(CallKind::kReduceScatterPieces) + 1);

bool has_root(const Call& call) {
  switch (static_cast<CallKind>(call.kind)) {
    case CallKind::kReduce:
    case CallKind::kBroadcast:
    case CallKind::kGather:
    case CallKind::kScatter:
      return true;
    default:
      return false;
  }
}

}  // namespace

Call call_of(CallKind kind, std::size_t bytes, std::string_view elements, int root) noexcept {
  Call call = {.kind = static_cast<std::uint32_t>(kind),
               .root = static_cast<std::uint32_t>(root),
               .bytes = bytes};
  std::copy_n(
      elements.begin(), std::min(elements.size(), call.elements.size()), call.elements.begin());
  return call;
}

Call call_of(CallKind kind, std::size_t bytes, DataType type, ReduceOp op, int root) noexcept {
  Call call = call_of(kind, bytes, {}, root);
  call.type = 1 + static_cast<std::uint32_t>(type);
  call.op = 1 + static_cast<std::uint32_t>(op);
  return call;
}

std::string text_of(const Call& call) {
  std::string text =
      call.kind < kKindNames.size() ? kKindNames[call.kind] : "call " + std::to_string(call.kind);
  text += " of " + std::to_string(call.bytes) + " bytes";
  if (call.type >= 1 && call.type <= kNumDataTypes && call.op >= 1 && call.op <= kNumReduceOps) {
    text += ", " + std::string(name_of(static_cast<ReduceOp>(call.op - 1))) + " of " +
            std::string(name_of(static_cast<DataType>(call.type - 1)));
  }
  const auto end = std::find(call.elements.begin(), call.elements.end(), '\0');
  const std::string elements(call.elements.begin(), end);
  if (!elements.empty()) text += " of type " + printable(elements);
  return has_root(call) ? text + ", root " + std::to_string(call.root) : text;
}

}  // namespace accel::shm
