// place: which nodes form a generation, and with which ranks.
//
//   survivors keep their node index; a newcomer takes the lowest hole, or the one it prefers;
//   spares fill holes only up to the size the job had (or min_nodes); when the world shrinks the
//   indices are made dense again, in the order they had.
//
// Threads:  a pure function. Cost: O(n log n).
#pragma once

#include <string>
#include <vector>

#include "agent/coordinator/messages/messages.h"

namespace accel::agent {

// A node that could take part now.
struct Candidate {
  NodeId node_id;
  int slots = 1;
  int previous_index = -1;   // in the last generation; -1: was not in it
  int preferred_index = -1;  // -1: any
  bool spare = false;
};

struct Seat {
  NodeId node_id;
  int node_index = 0;
  int first_rank = 0;
  int num_ranks = 1;
};

struct PlacementLimits {
  int min_nodes = 1;
  int max_nodes = 1;
  int previous_nodes = 0;  // size of the last generation; 0: there was none
};

// In the order of node_index, dense from 0; empty when there are fewer than min_nodes. Candidates
// with equal claims are taken in the order given.
[[nodiscard]] std::vector<Seat> place(std::vector<Candidate> candidates, PlacementLimits limits);

}  // namespace accel::agent
