// WidenedParameters: what becomes of a model that comes in 16 bits when mixed_precision is on and no policy says more.
//
// As in the peer (accelerate 1.15.0, fsdp2_prepare_model), trained parameters are kept in fp32 then, for optimizers to step;
// autocast computes in 16 bits. PrecisionRecipe says when; however many processes there are, so that a checkpoint of one goes on with
// several, and the other way round.
#pragma once

namespace torch::nn {
class Module;
}

namespace accel::sharding {

// Trained parameters of 16 bits become fp32, with the same values and tensor objects; the log says how many. Others stay, and so do
// those of a module that is divided already, and different tensors over one memory, which cannot be divided.
// Cost: the model in fp32, one parameter after the other. Threads: the thread that trains.
void widen_parameters(const torch::nn::Module& module);

}  // namespace accel::sharding
