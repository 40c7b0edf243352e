// MachinesFixture: whole jobs of several launchers on a board in memory, in steps of a clock that the test turns.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/start/machines/board/board_seal.h"
#include "launcher/start/machines/decisions/leader.h"
#include "launcher/start/machines/decisions/machine.h"

namespace accel::launcher {

using namespace std::chrono_literals;

inline MachineCard card_of(int rank, int num_machines, int num_workers = 1, int num_processes = 0) {
  MachineCard card;
  card.id = "id-" + std::to_string(rank);
  card.rank = rank;
  card.num_machines = num_machines;
  card.num_workers = num_workers;
  card.num_processes = num_processes;
  card.host = "host-" + std::to_string(rank);
  card.address = "10.0.0." + std::to_string(rank + 1);
  return card;
}

inline supervisor::WorkerExit failed_worker(int rank, int exit_code) {
  supervisor::WorkerExit exit;
  exit.global_rank = rank;
  exit.cause = supervisor::ExitCause::kNonZero;
  exit.exit_code = exit_code;
  return exit;
}

inline supervisor::JobOutcome outcome_with(int exit_code) {
  supervisor::JobOutcome outcome;
  outcome.success = exit_code == 0;
  outcome.exit_code = exit_code;
  return outcome;
}

// The store: swaps, sets, counter, reads, in this order.
class BoardInMemory {
 public:
  supervisor::StoreAnswer exchange(const supervisor::StoreExchange& wanted) {
    for (const auto& swap : wanted.swaps) {
      std::string& value = values_[swap.key];
      if (value == swap.expected) value = swap.desired;
    }
    for (const auto& [key, value] : wanted.sets) values_[key] = value;
    supervisor::StoreAnswer answer;
    if (wanted.counter) answer.count = ++counter_;
    for (const auto& key : wanted.reads) answer.values.push_back(values_[key]);
    return answer;
  }

  std::map<std::string, std::string> values_;

 private:
  int counter_ = 0;
};

// One launcher: what it was told to do.
struct Launcher {
  Launcher(MachineCard card, bool draws_rank)
      : machine(std::move(card), draws_rank, Program::kLaunch, "--main_process_port") {}

  Machine machine;
  std::unique_ptr<Leader> leader;
  BoardSeal seal;
  MachineActions actions;
  bool is_alive = true;
  bool prepares = true;  // its workers become ready at once

  template <typename T>
  [[nodiscard]] int count() const {
    int number = 0;
    for (const auto& action : actions) number += std::holds_alternative<T>(action) ? 1 : 0;
    return number;
  }
};

class MachinesFixture : public ::testing::Test {
 protected:
  Launcher& add(MachineCard card, LeaderOptions options = {}, bool draws_rank = false) {
    const bool leads = card.rank == 0 && !draws_rank;
    auto launcher = std::make_unique<Launcher>(card, draws_rank);
    if (leads) launcher->leader = std::make_unique<Leader>(card, options);
    launchers_.push_back(std::move(launcher));
    return *launchers_.back();
  }

  // Each launcher that lives exchanges once; then the clock goes on.
  void step(Duration time = 100ms) {
    for (const auto& launcher : launchers_) {
      if (launcher->is_alive) step_of(*launcher);
    }
    now_ += time;
  }
  void step_of(Launcher& launcher) {
    supervisor::StoreExchange wanted;
    launcher.machine.add_to(wanted);
    if (launcher.leader) launcher.leader->add_to(wanted);
    const Board board = launcher.seal.open(wanted, board_.exchange(launcher.seal.seal(wanted)));
    if (launcher.leader) launcher.leader->look(board, now_);
    for (auto& action : launcher.machine.take(board)) {
      if (std::holds_alternative<PrepareWorkers>(action)) {
        launcher.seal.pin();
        if (launcher.prepares) launcher.machine.workers_ready();
      }
      launcher.actions.push_back(std::move(action));
    }
  }
  void steps(int number, Duration time = 100ms) {
    for (int i = 0; i < number; ++i) step(time);
  }

  BoardInMemory board_;
  std::vector<std::unique_ptr<Launcher>> launchers_;
  TimePoint now_{1h};
};

}  // namespace accel::launcher
