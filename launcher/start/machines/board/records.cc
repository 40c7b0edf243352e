#include "launcher/start/machines/board/records.h"

#include <concepts>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "runtime/printable.h"
#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::launcher {
namespace {

using supervisor::FieldError;
using supervisor::Json;

constexpr int kMostMachines = 1'000'000;
constexpr int kMostWorkers = 100'000;  // of one machine
constexpr int kMostExitCode = 255;

template <typename T, typename Wanted>
concept Is = std::same_as<std::remove_const_t<T>, Wanted>;

// Each member once, for both directions.
template <Is<MachineCard> T, typename Visit>
void each_member(T& card, Visit&& visit) {
  visit("version", card.version);
  visit("id", card.id);
  visit("run_id", card.run_id);
  visit("generation", card.generation);
  visit("rank", card.rank);
  visit("num_machines", card.num_machines);
  visit("num_workers", card.num_workers);
  visit("num_processes", card.num_processes);
  visit("device", card.device);
  visit("host", card.host);
  visit("address", card.address);
}

template <Is<JobPlan> T, typename Visit>
void each_member(T& plan, Visit&& visit) {
  visit("restart_count", plan.restart_count);
  visit("num_workers", plan.num_workers);
  visit("hosts", plan.hosts);
  visit("launchers", plan.launchers);
}

template <Is<StopNote> T, typename Visit>
void each_member(T& note, Visit&& visit) {
  visit("kind", note.kind);
  visit("machine", note.machine);
  visit("rank", note.rank);
  visit("exit_code", note.exit_code);
  visit("may_restart", note.may_restart);
  visit("text", note.text);
}

template <Is<EndNote> T, typename Visit>
void each_member(T& note, Visit&& visit) {
  visit("success", note.success);
  visit("has_saved", note.has_saved);
  visit("exit_code", note.exit_code);
}

template <Is<Verdict> T, typename Visit>
void each_member(T& verdict, Visit&& visit) {
  visit("kind", verdict.kind);
  visit("code", verdict.code);
  visit("exit_code", verdict.exit_code);
  visit("machine", verdict.machine);
  visit("text", verdict.text);
  visit("remedy", verdict.remedy);
}

template <typename T>
void read(const Json& json, const char* name, T& out) {
  supervisor::read_member(json, name, out);
}
void read(const Json& json, const char* name, ComputeDevice& out) {
  if (!json.contains(name)) return;
  supervisor::read_member(json, name, [&](const Json& value) {
    supervisor::from_enum_field(value, out, ComputeDevice::kGpu);
  });
}
void read(const Json& json, const char* name, StopKind& out) {
  supervisor::read_member(json, name, [&](const Json& value) {
    supervisor::from_enum_field(value, out, StopKind::kLost);
  });
}
void read(const Json& json, const char* name, VerdictKind& out) {
  supervisor::read_member(json, name, [&](const Json& value) {
    supervisor::from_enum_field(value, out, VerdictKind::kRestart);
  });
}

template <typename T>
std::string encode(const T& record) {
  Json json = Json::object();
  each_member(record, [&](const char* name, const auto& member) {
    json[name] = supervisor::to_field(member);
  });
  return json.dump();
}

template <typename T>
T decode(const Json& json) {
  T record;
  each_member(record, [&](const char* name, auto& member) { read(json, name, member); });
  return record;
}

void require(int value, int least, int most, const char* name) {
  if (value < least || value > most) throw FieldError(std::string(name) + " is out of range");
}

}  // namespace

std::string board_key::of(std::string_view prefix, int machine_rank) {
  return std::string(prefix) + std::to_string(machine_rank);
}

std::string MachineCard::describe() const {
  return "machine " + std::to_string(rank) + " (" + printable(host) + ", " + printable(address) +
         ")";
}

std::string MachineCard::describe_host() const {
  return printable(host) + " (" + printable(address) + ")";
}

int JobPlan::world_size() const {
  return first_rank(static_cast<int>(num_workers.size()));
}

int JobPlan::first_rank(int machine_rank) const {
  return std::accumulate(num_workers.begin(), num_workers.begin() + machine_rank, 0);
}

std::string JobPlan::describe(int machine_rank) const {
  const auto index = static_cast<std::size_t>(machine_rank);
  const std::string name = "machine " + std::to_string(machine_rank);
  return index < hosts.size() ? name + " (" + printable(hosts[index]) + ")" : name;
}

std::string to_text(const MachineCard& card) {
  return encode(card);
}
std::string to_text(const JobPlan& plan) {
  return encode(plan);
}
std::string to_text(const StopNote& note) {
  return encode(note);
}
std::string to_text(const EndNote& note) {
  return encode(note);
}
std::string to_text(const Verdict& verdict) {
  return encode(verdict);
}

Result<MachineCard> card_from(std::string_view text) {
  return supervisor::decode_json(text, "a machine's card", [](const Json& json) {
    auto card = decode<MachineCard>(json);
    require(card.num_machines, 1, kMostMachines, "num_machines");
    require(card.rank, 0, kMostMachines, "rank");
    require(card.num_workers, 1, kMostWorkers, "num_workers");
    return card;
  });
}

Result<JobPlan> plan_from(std::string_view text) {
  return supervisor::decode_json(text, "the plan of the job", [](const Json& json) {
    auto plan = decode<JobPlan>(json);
    require(plan.restart_count, 0, kMostMachines, "restart_count");
    require(static_cast<int>(plan.num_workers.size()), 1, kMostMachines, "num_workers");
    std::int64_t world_size = 0;
    for (const int number : plan.num_workers) {
      require(number, 1, kMostWorkers, "num_workers");
      world_size += number;
    }
    if (world_size > std::numeric_limits<int>::max()) throw FieldError("num_workers is too large");
    if (plan.hosts.size() != plan.num_workers.size()) throw FieldError("hosts lacks a machine");
    if (plan.launchers.size() != plan.num_workers.size())
      throw FieldError("launchers lacks a machine");
    return plan;
  });
}

Result<StopNote> stop_from(std::string_view text) {
  return supervisor::decode_json(text, "a request to stop", [](const Json& json) {
    auto note = decode<StopNote>(json);
    require(note.machine, 0, kMostMachines, "machine");
    require(note.exit_code, 1, kMostExitCode, "exit_code");
    return note;
  });
}

Result<EndNote> end_from(std::string_view text) {
  return supervisor::decode_json(text, "a machine's end", [](const Json& json) {
    auto note = decode<EndNote>(json);
    require(note.exit_code, 0, kMostExitCode, "exit_code");
    return note;
  });
}

Result<Verdict> verdict_from(std::string_view text) {
  return supervisor::decode_json(text, "the end of the job", [](const Json& json) {
    auto verdict = decode<Verdict>(json);
    require(verdict.exit_code, 0, kMostExitCode, "exit_code");
    require(verdict.code, 0, static_cast<int>(ErrorCode::kCount_) - 1, "code");
    return verdict;
  });
}

}  // namespace accel::launcher
