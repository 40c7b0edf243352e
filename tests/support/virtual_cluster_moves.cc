// What may happen next in a virtual cluster, and how it is made to happen.

#include <algorithm>
#include <utility>

#include "tests/support/virtual_cluster.h"

namespace accel::agent::test {

bool VirtualCluster::is_quiet() const {
  return disk_.empty() && std::all_of(nodes_.begin(), nodes_.end(), [](const VirtualNode& node) {
           const bool can_pass = !node.is_cut;
           return (!can_pass || (node.up.empty() && node.down.empty())) &&
                  (node.is_paused || !node.is_agent_up || node.local.empty());
         });
}

std::vector<Move> VirtualCluster::moves(int window) const {
  std::vector<Move> result;
  if (!is_coordinator_up_) result.push_back({MoveKind::kStartCoordinator});
  if (!disk_.empty()) result.push_back({MoveKind::kWrite});
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const VirtualNode& node = nodes_[i];
    const int index = static_cast<int>(i);
    if (!node.is_up) {
      result.push_back({MoveKind::kStartNode, index});
    } else if (!node.is_agent_up) {
      result.push_back({MoveKind::kStartAgent, index});
    }
    if (node.is_paused) result.push_back({MoveKind::kResumeAgent, index});
    if (node.is_cut) {
      result.push_back({MoveKind::kHeal, index});
    } else {
      const bool may_connect = node.is_agent_up && !node.is_paused && is_coordinator_up_;
      if (node.connection == 0 && may_connect && now_ >= node.connect_at) {
        result.push_back({MoveKind::kConnect, index});
      }
      for (int k = 0; k < std::min<int>(window, static_cast<int>(node.up.size())); ++k) {
        result.push_back({MoveKind::kDeliverUp, index, k});
      }
      for (int k = 0;
           !node.is_paused && k < std::min<int>(window, static_cast<int>(node.down.size()));
           ++k) {
        result.push_back({MoveKind::kDeliverDown, index, k});
      }
    }
    if (!node.local.empty() && !node.is_paused && node.is_agent_up) {
      result.push_back({MoveKind::kDeliverLocal, index});
    }
  }
  return result;
}

void VirtualCluster::apply(const Move& move) {
  VirtualNode& node = nodes_[static_cast<std::size_t>(move.node)];
  switch (move.kind) {
    case MoveKind::kDeliverUp:
      return deliver_up(node, move.index, false);
    case MoveKind::kRepeatUp:
      return deliver_up(node, move.index, true);
    case MoveKind::kDeliverDown:
      return deliver_down(node, move.index, false);
    case MoveKind::kRepeatDown:
      return deliver_down(node, move.index, true);
    case MoveKind::kDropUp:
      node.up.erase(node.up.begin() + move.index);
      return;
    case MoveKind::kDropDown:
      node.down.erase(node.down.begin() + move.index);
      return;
    case MoveKind::kDeliverLocal: {
      auto what = std::move(node.local.front());
      node.local.pop_front();
      return tell_node(move.node, std::move(what));
    }
    case MoveKind::kWrite:
      return write_next();
    case MoveKind::kConnect:
      return connect(node);
    case MoveKind::kAdvance:
      return advance();
    case MoveKind::kCrashAgent:
      return crash_agent(node);
    case MoveKind::kCrashNode: {
      const bool had_connection = node.connection != 0;
      crash_agent(node);
      if (had_connection) node.up.pop_back();  // nobody is there to reset the connection
      node.is_up = false;
      node.workers = Workers{};
      return;
    }
    case MoveKind::kCrashCoordinator:
      return crash_coordinator();
    case MoveKind::kCut:
      node.is_cut = true;
      return;
    case MoveKind::kHeal:
      node.is_cut = false;
      return;
    case MoveKind::kFailRank:
      return fail_rank(node);
    case MoveKind::kPauseAgent:
      node.is_paused = true;
      return;
    case MoveKind::kResumeAgent:
      node.is_paused = false;
      return;
    case MoveKind::kStartAgent:
      return start_agent(node);
    case MoveKind::kStartNode:
      node.is_up = true;
      node.info.boot_id = "boot-" + std::to_string(++node.num_boots);
      return start_agent(node);
    case MoveKind::kStartCoordinator:
      return start_coordinator();
  }
}

void VirtualCluster::mend() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    VirtualNode& node = nodes_[i];
    const int index = static_cast<int>(i);
    node.is_cut = node.is_paused = false;
    if (!node.is_up) {
      apply({MoveKind::kStartNode, index});
    } else if (!node.is_agent_up) {
      start_agent(node);
    }
  }
  disk_full_ = false;
  if (!is_coordinator_up_) start_coordinator();
}

void VirtualCluster::settle() {
  constexpr int kMost = 100'000;
  for (int i = 0; i < kMost; ++i) {
    const auto next = moves(1);
    const auto move = std::find_if(next.begin(), next.end(), [](const Move& candidate) {
      return candidate.kind <= MoveKind::kConnect;
    });
    if (move == next.end()) return;
    apply(*move);
  }
  breach("messages go to and fro without end");
}

void VirtualCluster::run_for(Milliseconds time) {
  const TimePoint end = now_ + time;
  settle();
  while (now_ < end) {
    advance_to(std::min(end, next_moment()));
    settle();
  }
}

void VirtualCluster::advance_by(Milliseconds time) {
  const TimePoint end = now_ + time;
  while (now_ < end) {
    advance_to(std::min(end, next_moment()));
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      while (!nodes_[i].local.empty() && nodes_[i].is_agent_up)
        apply({MoveKind::kDeliverLocal, static_cast<int>(i)});
    }
  }
}

int VirtualCluster::run_fairly(int most) {
  int steps = 0;
  for (; steps < most && !has_ended() && violation_.empty(); ++steps) {
    settle();
    if (!has_ended()) advance();
  }
  return steps;
}

}  // namespace accel::agent::test
