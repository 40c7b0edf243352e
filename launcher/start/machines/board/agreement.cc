#include "launcher/start/machines/board/agreement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

Error disagreement(const MachineCard& main,
                   const MachineCard& card,
                   const std::string& flag,
                   int of_main,
                   int of_card) {
  return Error(ErrorCode::kInvalidArgument,
               card.describe() + " has " + flag + " " + std::to_string(of_card) + ", but " +
                   main.describe() + " has " + flag + " " + std::to_string(of_main),
               "give the same " + flag + " on every machine");
}

// Of two cards, one of which says how many workers all machines have: those of the other make another sum.
std::optional<Error> find_other_share(const MachineCard& counting, const MachineCard& card) {
  const int rest = counting.num_processes % counting.num_machines;
  const int share = counting.num_processes / counting.num_machines;
  if (counting.num_processes == 0 || rest != 0 || card.num_workers == share) return std::nullopt;
  return Error(
      ErrorCode::kInvalidArgument,
      card.describe() + " has " + std::to_string(card.num_workers) + " workers, but " +
          counting.describe() + " has --num_processes " + std::to_string(counting.num_processes) +
          " on " + std::to_string(counting.num_machines) + " machines, " + std::to_string(share) +
          " on each",
      "give the same --num_processes on every machine, or --nproc_per_node on every machine");
}

std::optional<Error> find_other_device(const MachineCard& main, const MachineCard& card) {
  const auto is_unsaid = [](const MachineCard& one) {
    return one.device == ComputeDevice::kUnsaid;
  };
  if (main.device == card.device || is_unsaid(main) || is_unsaid(card)) return std::nullopt;
  const bool is_main_on_cpu = main.device == ComputeDevice::kCpu;
  const MachineCard& on_cpu = is_main_on_cpu ? main : card;
  const MachineCard& on_gpu = is_main_on_cpu ? card : main;
  return Error(
      ErrorCode::kInvalidArgument,
      on_cpu.describe() + " computes on the CPU, but " + on_gpu.describe() + " on GPUs",
      "mend the driver or CUDA_VISIBLE_DEVICES where --cpu was not meant, or give --cpu on "
      "every machine");
}

}  // namespace

std::optional<Error> find_fault(const MachineCard& main) {
  const int rest = main.num_processes % main.num_machines;
  if (rest == 0) return std::nullopt;
  const int below = main.num_processes - rest;
  const int above = below + main.num_machines;
  return Error(ErrorCode::kInvalidArgument,
               std::to_string(main.num_processes) + " processes do not divide over " +
                   std::to_string(main.num_machines) + " machines",
               "give --num_processes " +
                   (below > 0 ? std::to_string(below) + " or " + std::to_string(above)
                              : std::to_string(above)) +
                   ", on every machine the same: it counts the processes of all machines");
}

std::optional<Error> find_disagreement(const MachineCard& main,
                                       const MachineCard& card,
                                       Program program) {
  if (main.version != card.version) {
    return Error(ErrorCode::kProtocol,
                 card.describe() + " speaks version " + std::to_string(card.version) +
                     " of the agreement, and " + main.describe() + " version " +
                     std::to_string(main.version),
                 "install the same build of accel on every machine");
  }
  if (main.run_id != card.run_id) {
    const std::string id = spelled("rdzv_id", program);
    return Error(
        ErrorCode::kInvalidArgument,
        card.describe() + " has " + id + " '" + printable(card.run_id) + "', but " +
            main.describe() + " has " + id + " '" + printable(main.run_id) + "'",
        "give the same " + id + " on every machine of a job, and each job a port of its own");
  }
  if (main.num_machines != card.num_machines) {
    return disagreement(
        main, card, spelled("num_machines", program), main.num_machines, card.num_machines);
  }
  if (main.num_processes != card.num_processes && main.num_processes > 0 &&
      card.num_processes > 0) {
    return disagreement(main, card, "--num_processes", main.num_processes, card.num_processes);
  }
  if (auto other = find_other_device(main, card)) return other;
  if (auto other = find_other_share(main, card)) return other;
  return find_other_share(card, main);
}

std::optional<Error> find_disagreement(const std::vector<MachineCard>& cards, Program program) {
  // All that say a number agree with machine 0, or with the first one that does.
  const auto counts = [](const MachineCard& card) { return card.num_processes > 0; };
  const auto counting = std::ranges::find_if(cards, counts);
  if (counting == cards.end()) return std::nullopt;
  for (const MachineCard& card : cards) {
    if (auto why = find_disagreement(*counting, card, program)) return why;
  }
  return std::nullopt;
}

Error rank_is_taken(const MachineCard& holder,
                    const MachineCard& card,
                    Program program,
                    const std::string& port_flag) {
  return Error(
      ErrorCode::kInvalidArgument,
      "machine rank " + std::to_string(card.rank) + " was given twice: to " +
          holder.describe_host() + " and to " + card.describe_host(),
      "give each machine a " + spelled("machine_rank", program) + " of its own, from 0 to " +
          std::to_string(card.num_machines - 1) +
          (card.rank == 0 ? "; if these are two jobs, give each a " + port_flag + " of its own"
                          : ""));
}

Verdict failed_verdict(const Error& why, int machine) {
  return {.kind = VerdictKind::kFailed,
          .code = static_cast<int>(why.code()),
          .exit_code = error_info(why.code()).exit_status,
          .machine = machine,
          .text = why.message(),
          .remedy = why.remedy()};
}

Error error_of(const Verdict& verdict) {
  return Error(
      static_cast<ErrorCode>(verdict.code), printable(verdict.text), printable(verdict.remedy));
}

JobPlan make_plan(const std::vector<MachineCard>& cards, int restart_count) {
  JobPlan plan;
  plan.restart_count = restart_count;
  for (const MachineCard& card : cards) {
    plan.num_workers.push_back(card.num_workers);
    plan.hosts.push_back(card.host);
    plan.launchers.push_back(card.id);
  }
  return plan;
}

}  // namespace accel::launcher
