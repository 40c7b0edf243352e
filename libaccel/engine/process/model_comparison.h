// ModelComparison: where two ranks' models differ.
//
// Threads:  any; reads the module.
#pragma once

namespace torch::nn {
class Module;
}

namespace accel {

class ProcessGroup;

// Whether ranks may differ in buffers: not where those of rank 0 are sent to the others.
enum class Buffers { kCompared, kOwn };

// Compares the models of all ranks. Throws kShapeMismatch, the same on every rank, naming the first
// tensor that differs from rank 0's and the rank that has it. Cost: one message of 16 bytes.
void verify_same_models(const torch::nn::Module& module, Buffers buffers, ProcessGroup& group);

}  // namespace accel
