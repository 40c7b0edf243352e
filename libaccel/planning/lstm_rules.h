// LstmRules: what oneDNN's LSTM gives, which is that of torch::nn::LSTM on a CPU.
//
// Its forward keeps a workspace for the backward, of a size that oneDNN alone knows, and both take memory while they run. They are
// asked as in kernel_memory.h: over the whole sequence where that is quick, else over the first steps of it, after which each step
// adds as much.
//
// Threads:  any; a lock.
// Cost:     some milliseconds for the first LSTM of a size in a process.
#pragma once

#include "libaccel/planning/size_rules.h"

namespace accel::planning {

// Of aten::mkldnn_rnn_layer and its backward, by their arguments.
[[nodiscard]] Sized lstm_layer(Arguments arguments);
[[nodiscard]] Sized lstm_layer_backward(Arguments arguments);

// Multiplications and additions.
[[nodiscard]] double lstm_flops(Arguments arguments);
[[nodiscard]] double lstm_backward_flops(Arguments arguments);

}  // namespace accel::planning
