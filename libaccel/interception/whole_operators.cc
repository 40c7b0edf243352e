#include "libaccel/interception/whole_operators.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include <torch/library.h>

#include "libaccel/interception/backward_hooks.h"
#include "libaccel/interception/operator_hook.h"

namespace accel::interception {
namespace {

constexpr auto kWholeKey = c10::DispatchKey::DeferredInit;

thread_local OperatorHandler* t_handler = nullptr;

// ---- rewritings ----

struct RewritingEntry {
  std::uint64_t number;  // rises
  std::vector<c10::OperatorHandle> operators;
  OperatorHandler* handler;
};
using RewritingEntries = std::vector<RewritingEntry>;  // the last one that was added first

std::mutex g_rewritings_mutex;
std::shared_ptr<const RewritingEntries> g_rewritings = std::make_shared<RewritingEntries>();
std::uint64_t g_next_rewriting = 0;

// The number of the rewriting that this thread is in: those behind it have lower ones.
thread_local std::uint64_t t_rewriting = std::numeric_limits<std::uint64_t>::max();

std::shared_ptr<const RewritingEntries> all_rewritings() {
  const std::lock_guard lock(g_rewritings_mutex);
  return g_rewritings;
}

bool is_marked(const c10::IValue& argument) {
  if (argument.isTensor()) return argument.unsafeToTensorImpl()->key_set().has(kWholeKey);
  if (!argument.isList()) return false;
  const auto items = argument.toListRef();
  return std::any_of(items.begin(), items.end(), is_marked);
}

bool rewrite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_in_backward()) return false;
  // Not all are, on a thread with a handler.
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (std::none_of(arguments.begin(), arguments.end(), is_marked)) return false;
  const auto all = all_rewritings();
  for (const RewritingEntry& entry : *all) {
    if (entry.number >= t_rewriting ||
        std::find(entry.operators.begin(), entry.operators.end(), op) == entry.operators.end())
      continue;
    struct Inside {
      std::uint64_t outer;
      ~Inside() { t_rewriting = outer; }
    } const inside{std::exchange(t_rewriting, entry.number)};
    if (entry.handler->run(op, stack)) return true;
  }
  return false;
}

// ---- the fallback ----

void ask_handlers(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (rewrite(op, stack)) return;
  const NoHandlers inner;
  // No handler: a marked tensor, or a thread that took over the keys of one with a handler, as autograd's do.
  if (t_handler != nullptr && t_handler->run(op, stack)) return;
  op.callBoxed(stack);
}

// At the first handler or mark.
void hook_whole_operators() {
  static const bool is_registered = [] {
    hook_operators("_", kWholeKey)
        .fallback(torch::CppFunction::makeFromBoxedFunction<&ask_handlers>());
    return true;
  }();
  (void)is_registered;
}

OperatorHandler* enter(OperatorHandler& handler) {
  hook_whole_operators();
  return std::exchange(t_handler, &handler);
}

c10::OperatorHandle operator_of(const std::string& name) {
  const auto point = name.find('.');
  const bool has_overload = point != std::string::npos;
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, point).c_str(), has_overload ? name.substr(point + 1).c_str() : "");
}

}  // namespace

Rewriting::Rewriting(const std::vector<std::string>& operators, OperatorHandler& handler) {
  RewritingEntry entry{.number = 0, .operators = {}, .handler = &handler};
  for (const std::string& name : operators) entry.operators.push_back(operator_of(name));
  const std::lock_guard lock(g_rewritings_mutex);
  entry.number = number_ = g_next_rewriting++;
  auto entries = std::make_shared<RewritingEntries>(*g_rewritings);
  entries->insert(entries->begin(), std::move(entry));
  g_rewritings = std::move(entries);
}

Rewriting::~Rewriting() {
  const std::lock_guard lock(g_rewritings_mutex);
  auto entries = std::make_shared<RewritingEntries>(*g_rewritings);
  std::erase_if(*entries, [this](const RewritingEntry& entry) { return entry.number == number_; });
  g_rewritings = std::move(entries);
}

void mark_for_rewriting(const at::Tensor& parameter) {
  hook_whole_operators();
  parameter.set_data(make_with_key(parameter,
                                   kWholeKey,
                                   parameter.storage(),
                                   parameter.scalar_type(),
                                   parameter.storage_offset()));
}

ThreadHandler::ThreadHandler(OperatorHandler& handler) : outer_(enter(handler)), key_(kWholeKey) {}

ThreadHandler::~ThreadHandler() {
  t_handler = outer_;
}

NoHandlers::NoHandlers() : key_(kWholeKey) {}

}  // namespace accel::interception
