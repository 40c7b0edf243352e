// OptimizerFields: which fields the states and options of LibTorch's optimizers have.
//
// One list for each type, visited by the writer and by the reader alike, so that the two cannot
// drift apart. A visitor is called with a name and a reference to the field.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace accel::checkpoint {

template <typename V>
void visit_fields(torch::optim::SGDParamState& state, V&& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

template <typename V>
void visit_fields(torch::optim::SGDOptions& options, V&& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

template <typename State, typename V>
void visit_adam_state(State& state, V&& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

template <typename Options, typename V>
void visit_adam_options(Options& options, V&& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <typename V>
void visit_fields(torch::optim::AdamParamState& state, V&& visit) {
  visit_adam_state(state, visit);
}
template <typename V>
void visit_fields(torch::optim::AdamOptions& options, V&& visit) {
  visit_adam_options(options, visit);
}
template <typename V>
void visit_fields(torch::optim::AdamWParamState& state, V&& visit) {
  visit_adam_state(state, visit);
}
template <typename V>
void visit_fields(torch::optim::AdamWOptions& options, V&& visit) {
  visit_adam_options(options, visit);
}

template <typename V>
void visit_fields(torch::optim::RMSpropParamState& state, V&& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

template <typename V>
void visit_fields(torch::optim::RMSpropOptions& options, V&& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

template <typename V>
void visit_fields(torch::optim::AdagradParamState& state, V&& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

template <typename V>
void visit_fields(torch::optim::AdagradOptions& options, V&& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

// "al" is left out: the two-loop recursion overwrites it before it reads it.
template <typename V>
void visit_fields(torch::optim::LBFGSParamState& state, V&& visit) {
  visit("func_evals", state.func_evals());
  visit("n_iter", state.n_iter());
  visit("t", state.t());
  visit("prev_loss", state.prev_loss());
  visit("d", state.d());
  visit("H_diag", state.H_diag());
  visit("prev_flat_grad", state.prev_flat_grad());
  visit("old_dirs", state.old_dirs());
  visit("old_stps", state.old_stps());
  visit("ro", state.ro());
}

template <typename V>
void visit_fields(torch::optim::LBFGSOptions& options, V&& visit) {
  visit("lr", options.lr());
  visit("max_iter", options.max_iter());
  visit("max_eval", options.max_eval());
  visit("tolerance_grad", options.tolerance_grad());
  visit("tolerance_change", options.tolerance_change());
  visit("history_size", options.history_size());
  visit("line_search_fn", options.line_search_fn());
}

}  // namespace accel::checkpoint
