// accel in C: train a model that Python exported, from C, Fortran or any language that calls C.
//
//   accel_accelerator* accelerator = NULL;
//   accel_model* model = NULL;
//   accel_optimizer_options adamw;
//   accel_optimizer_options_init(&adamw, "adamw");
//   accel_array x = {samples, ACCEL_FLOAT32, 2, {batch, width}};           // the program's own memory: nothing is copied
//   if (accel_create(NULL, &accelerator) || accel_load_model(accelerator, "net.pt2", NULL, &model) ||
//       accel_prepare(model, &adamw, NULL) || accel_bind_input(model, "x", &x))
//     fail(accel_last_error());
//   while (next_batch(samples)) {
//     accel_step_result result;
//     if (accel_step(model, 1.0, &result)) fail(accel_last_error());       // forward, backward, clipping, optimizer
//   }
//   accel_save_model(model, "trained");
//   accel_destroy(&accelerator);
//
// docs/guides/c-interface.md is the guide; it shows the same in Fortran, and how the ranks of an MPI communicator join.
//
// Errors    a function that returns int gives ACCEL_OK or an ACCEL_ERROR_*, unless its comment says otherwise; accel_last_error()
//           gives the message. After an error nothing is written through a result pointer. NULL for a handle is
//           ACCEL_ERROR_INVALID_ARGUMENT. No exception leaves a function.
// Text      UTF-8 that ends with 0. The library copies the text that it gets.
// Memory    the library owns the handles: the accelerator owns its models, and accel_destroy() frees all of them.
// Threads   one thread at a time for an accelerator and its models; errors are kept for each thread. A process has one
//           accelerator at a time.
// Ranks     "every rank" means: all ranks call it, in the same order as other such functions. If a rank does not call it, the
//           others wait for options.timeout.
// ABI       structs grow with the version of libaccel (its SONAME): compile and link with the same version.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <accel/export.h>

#ifdef __cplusplus
extern "C" {
#endif

// --- errors

// The numbers do not change; new ones are added at the end. docs/reference/errors.md describes each error.
enum accel_code {
  ACCEL_OK = 0,
  ACCEL_ERROR_INTERNAL = 1,  // a fault of accel itself, or an operator of LibTorch failed
  ACCEL_ERROR_INVALID_ARGUMENT = 2,
  ACCEL_ERROR_USAGE = 3,
  ACCEL_ERROR_UNKNOWN_FLAG = 4,
  ACCEL_ERROR_CONFIG_UNREADABLE = 5,
  ACCEL_ERROR_CONFIG_SYNTAX = 6,
  ACCEL_ERROR_CONFIG_UNKNOWN_KEY = 7,
  ACCEL_ERROR_CONFIG_INVALID_VALUE = 8,
  ACCEL_ERROR_ENV_INVALID = 9,
  ACCEL_ERROR_SCRIPT_MISSING = 10,
  ACCEL_ERROR_SCRIPT_NOT_EXECUTABLE = 11,
  ACCEL_ERROR_EXEC_FAILED = 12,
  ACCEL_ERROR_LIBRARY_MISSING = 13,
  ACCEL_ERROR_SPAWN_FAILED = 14,
  ACCEL_ERROR_SHIM_MISSING = 15,
  ACCEL_ERROR_SHIM_LOST = 16,
  ACCEL_ERROR_PROTOCOL = 17,
  ACCEL_ERROR_WORKER_FAILED = 18,
  ACCEL_ERROR_WORKER_SIGNALED = 19,
  ACCEL_ERROR_WORKER_OUT_OF_MEMORY = 20,
  ACCEL_ERROR_WORKER_UNKILLABLE = 21,
  ACCEL_ERROR_RESTARTS_EXHAUSTED = 22,
  ACCEL_ERROR_PORT_IN_USE = 23,
  ACCEL_ERROR_STORE_UNREACHABLE = 24,
  ACCEL_ERROR_STORE_TIMEOUT = 25,
  ACCEL_ERROR_STORE_LIMIT = 26,
  ACCEL_ERROR_CHANNEL_CORRUPT = 27,
  ACCEL_ERROR_CHANNEL_VERSION = 28,
  ACCEL_ERROR_LOG_UNWRITABLE = 29,
  ACCEL_ERROR_TOPOLOGY = 30,
  ACCEL_ERROR_PEER_LOST = 31,
  ACCEL_ERROR_PROCESS_GROUP = 32,
  ACCEL_ERROR_NOT_INITIALIZED = 33,
  ACCEL_ERROR_SHAPE_MISMATCH = 34,
  ACCEL_ERROR_DATA_SHARDING = 35,
  ACCEL_ERROR_SAFETENSORS_HEADER = 36,
  ACCEL_ERROR_SAFETENSORS_MISMATCH = 37,
  ACCEL_ERROR_CHECKPOINT_INCOMPLETE = 38,
  ACCEL_ERROR_CHECKPOINT_MISMATCH = 39,
  ACCEL_ERROR_CHECKPOINT_VERSION = 40,
  ACCEL_ERROR_CHECKPOINT_EXISTS = 41,
  ACCEL_ERROR_FILE_IO = 42,
  ACCEL_ERROR_DISK_FULL = 43,
  ACCEL_ERROR_OUT_OF_MEMORY = 44,
  ACCEL_ERROR_AGENT_UNREACHABLE = 45,
  ACCEL_ERROR_AGENT_REFUSED = 46,
  ACCEL_ERROR_AGENT_RUNNING = 47,
  ACCEL_ERROR_JOB_UNKNOWN = 48,
  ACCEL_ERROR_AUTHENTICATION = 49,
  ACCEL_ERROR_TLS = 50,
  ACCEL_ERROR_RENDEZVOUS_TIMEOUT = 51,
  ACCEL_ERROR_COORDINATOR_LOST = 52,
  ACCEL_ERROR_CLUSTER_MISSING = 53,
  ACCEL_ERROR_UNSUPPORTED = 54,
  ACCEL_ERROR_SHIM_STATE = 55,
  ACCEL_ERROR_SHIM_REFUSED = 56,
  ACCEL_ERROR_WORKER_HUNG = 57,
  ACCEL_ERROR_ETCD_UNREACHABLE = 58,
  ACCEL_ERROR_LEADERSHIP_LOST = 59,
  ACCEL_ERROR_NODE_LOST = 60,
  ACCEL_ERROR_PREFLIGHT_FAILED = 61,
  ACCEL_ERROR_NOT_FINITE = 62
};

// The error of the last function of this thread that failed: the message, the context, what to try. Several lines,
// without a newline at the end; "" when none has failed. Valid until the next function fails.
ACCEL_EXPORT const char* accel_last_error(void);
// "store.unreachable" for ACCEL_ERROR_STORE_UNREACHABLE, as in docs/reference/errors.md; "ok" for ACCEL_OK, NULL for no code.
ACCEL_EXPORT const char* accel_error_id(int code);
// "0.1.0".
ACCEL_EXPORT const char* accel_version(void);

// --- ranks that another program started, not accel-launch

typedef struct accel_rendezvous accel_rendezvous;

// Opens a rendezvous on a free port of `host`, a name or an address of this machine; NULL or "": all of its addresses, under the
// machine's name. Every program that reaches the port can read the messages of the ranks there: give "127.0.0.1" when all ranks
// are on one machine, otherwise the address in the cluster's own network. One rank opens it. Errors  INVALID_ARGUMENT: not an
// address of this machine; PROCESS_GROUP: the system refused.
ACCEL_EXPORT int accel_rendezvous_open(const char* host, accel_rendezvous** rendezvous);
#define ACCEL_ADDRESS_SIZE 320
// The address that the other ranks need (accel_communicator.address): shorter than ACCEL_ADDRESS_SIZE, so that a buffer of that
// size can be broadcast. Valid as long as the rendezvous; NULL for NULL.
ACCEL_EXPORT const char* accel_rendezvous_address(const accel_rendezvous* rendezvous);
// Call it when accel_destroy() has returned on every rank; *rendezvous becomes NULL. NULL does nothing.
ACCEL_EXPORT void accel_rendezvous_close(accel_rendezvous** rendezvous);

// The place of this process among the ranks. With MPI: MPI_Comm_rank() and MPI_Comm_size() of the communicator whose ranks train
// together, and of the communicator that MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, ...) makes from it.
typedef struct accel_communicator {
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
  const char*
      address;  // accel_rendezvous_address() of the rank that opened it; not needed for one rank
} accel_communicator;

// --- the accelerator

typedef struct accel_accelerator accel_accelerator;
typedef struct accel_model accel_model;

typedef struct accel_options {
  // NULL: from the variables of accel-launch (docs/reference/env_contract.md); without them one process.
  const accel_communicator* communicator;
  const char* mixed_precision;  // "no", "bf16", "fp16"; NULL: the launcher's value, else "no"
  // How state is divided over the ranks (docs/guides/sharding.md): "ddp" not at all, "zero1" optimizer states, "zero2" also gradients,
  // "full_shard" also parameters. NULL: the launcher's value, else "ddp".
  const char* strategy;
  int gradient_accumulation_steps;  // batches for one step of the optimizer; 1
  int cpu;                          // not 0: use no GPU; 0
  int find_unused_parameters;       // not 0: in some batches some parameters get no gradient; 0
  double timeout;        // seconds that a rank waits for the others in a collective; 1800
  double store_timeout;  // seconds that ranks wait for one another at the start; 300
} accel_options;

// The defaults above.
ACCEL_EXPORT void accel_options_init(accel_options* options);

// options: NULL: the defaults. Every rank. Errors  INVALID_ARGUMENT, also while there is another accelerator; ENV_INVALID,
// STORE_UNREACHABLE, STORE_TIMEOUT, PROCESS_GROUP, PEER_LOST, UNSUPPORTED. After an error it may be called again.
ACCEL_EXPORT int accel_create(const accel_options* options, accel_accelerator** accelerator);
// Leaves the group and frees the accelerator with its models; *accelerator becomes NULL, also after an error. Every rank. NULL
// does nothing. Errors  PEER_LOST, PROCESS_GROUP.
ACCEL_EXPORT int accel_destroy(accel_accelerator** accelerator);

// Each returns the value in its name, or -1 for an error.
ACCEL_EXPORT int accel_rank(const accel_accelerator* accelerator);
ACCEL_EXPORT int accel_world_size(const accel_accelerator* accelerator);
ACCEL_EXPORT int accel_local_rank(const accel_accelerator* accelerator);
// How often accel-launch has restarted the job: above 0 a program resumes from its last checkpoint.
ACCEL_EXPORT int accel_restart_count(const accel_accelerator* accelerator);

// Seeds LibTorch's random numbers (dropout), with `seed` + rank when device_specific is not 0.
ACCEL_EXPORT int accel_set_seed(accel_accelerator* accelerator, uint64_t seed, int device_specific);

// --- arrays

enum accel_dtype {
  // accel.f90's value for an array with gaps: every function refuses it.
  ACCEL_NOT_CONTIGUOUS = -1,
  ACCEL_BOOL = 1,  // bytes of 0 or 1
  ACCEL_UINT8 = 2,
  ACCEL_INT8 = 3,
  ACCEL_INT16 = 4,
  ACCEL_INT32 = 5,
  ACCEL_INT64 = 6,
  ACCEL_FLOAT16 = 7,
  ACCEL_BFLOAT16 = 8,
  ACCEL_FLOAT32 = 9,
  ACCEL_FLOAT64 = 10,
  ACCEL_COMPLEX64 = 11,
  ACCEL_COMPLEX128 = 12
};

#define ACCEL_MAX_DIMS 15  // the limit of Fortran

// Memory of the program in C order: the last dimension is contiguous, without gaps. A Fortran array has the same memory with
// reversed dimensions: a(nx, ny, batch) is the shape {batch, ny, nx}.
typedef struct accel_array {
  void* data;    // may be NULL when there are no elements
  int dtype;     // an accel_dtype
  int num_dims;  // 0: one number
  int64_t shape[ACCEL_MAX_DIMS];
} accel_array;

// --- models

// Reads a file that torch.export.save() or `accel export` wrote (docs/guides/exported-models.md). weights: a safetensors file whose
// values replace the file's own; NULL: the file's own. The model is in training mode if the file has a training graph. Errors  FILE_IO,
// CHECKPOINT_INCOMPLETE, CHECKPOINT_VERSION, SAFETENSORS_MISMATCH, UNSUPPORTED.
ACCEL_EXPORT int accel_load_model(accel_accelerator* accelerator,
                                  const char* path,
                                  const char* weights,
                                  accel_model** model);

typedef struct accel_optimizer_options {
  char name[16];  // "adamw", "adam" or "sgd"
  double lr;
  double weight_decay;
  double beta1, beta2, eps;    // adamw, adam
  double momentum, dampening;  // sgd
  int nesterov;                // sgd; not 0: on
  int amsgrad;                 // adamw, adam; not 0: on
  int fused;  // not 0: one pass over memory for a step; results differ in the last digits
} accel_optimizer_options;

// PyTorch's defaults for this optimizer; fields that it does not have are 0. Errors  INVALID_ARGUMENT: no such name.
ACCEL_EXPORT int accel_optimizer_options_init(accel_optimizer_options* options, const char* name);

// The learning rate after `n` steps of the optimizer is lr times a factor that goes from 0 to 1 over num_warmup_steps and then
//   "constant"  stays 1
//   "linear"    goes to 0 at num_training_steps
//   "cosine"    goes to 0 at num_training_steps, along half a cosine wave
//   "step"      is multiplied by gamma after each step_size steps
typedef struct accel_schedule {
  char name[16];
  int64_t num_warmup_steps;
  int64_t num_training_steps;  // linear, cosine; warm-up included
  int64_t step_size;           // step
  double gamma;                // step
} accel_schedule;

// A schedule with no warm-up and gamma 0.1. Errors  INVALID_ARGUMENT: no such name.
ACCEL_EXPORT int accel_schedule_init(accel_schedule* schedule, const char* name);

// Prepares the model on all ranks: every rank gets the parameters of rank 0, divided by options.strategy. optimizer: NULL for a
// model that is only evaluated; schedule: NULL for a constant rate. Every rank, once for each model. Errors  INVALID_ARGUMENT;
// UNSUPPORTED: accumulation of gradients for several models; SHAPE_MISMATCH: the ranks have different models; PEER_LOST,
// PROCESS_GROUP, OUT_OF_MEMORY.
ACCEL_EXPORT int accel_prepare(accel_model* model,
                               const accel_optimizer_options* optimizer,
                               const accel_schedule* schedule);

// The names of the inputs and outputs, in order; NULL for an index that does not exist. Valid as long as the model.
ACCEL_EXPORT const char* accel_input_name(const accel_model* model, int index);
ACCEL_EXPORT const char* accel_output_name(const accel_model* model, int index);

// The dtype and the shape that the graph takes for an input: a size of -1 may differ from forward to forward. data is NULL; dtype is
// 0 for an input that is a number: bind an array without dimensions. Errors  INVALID_ARGUMENT: no such input.
ACCEL_EXPORT int accel_describe_input(const accel_model* model,
                                      const char* name,
                                      accel_array* array);
// Binds the input `name` to this memory, from the next forward on. The memory is borrowed, not copied: write new values into it,
// or bind other memory, between steps. Do not change it from a forward to the end of its backward, and keep it until the model is
// freed or other memory is bound. The forward compares the shape with the model's. array: NULL: None again.
// Errors  INVALID_ARGUMENT: no such input, another dtype than the graph takes, or no such array.
ACCEL_EXPORT int accel_bind_input(accel_model* model, const char* name, const accel_array* array);
// Not 0: backward also computes the gradient of this input, for accel_read_input_gradient(). In evaluation mode it computes nothing
// else: the gradients of parameters do not change, and a single rank may call it if the model is not divided.
ACCEL_EXPORT int accel_require_input_gradient(accel_model* model, const char* name, int required);

// Not 0: training mode; 0: evaluation mode: forwards keep nothing for a backward unless an input requires its gradient.
// Errors  UNSUPPORTED: the file has no graph for that mode.
ACCEL_EXPORT int accel_set_training(accel_model* model, int training);

// --- the training step

typedef struct accel_step_result {
  double loss;       // of this rank's batch
  double grad_norm;  // before clipping, of the mean over all ranks; NaN when nothing was clipped
  double lr;         // of this step
  int stepped;  // 1: the optimizer stepped; 0: gradients are being accumulated, or (fp16) one was not finite
} accel_step_result;

// One batch: accel_forward(), accel_backward() of the output "loss" (or of the only output), accel_optimizer_step(). result: NULL
// avoids the wait for the numbers. After a forward that failed, the next one begins the same batch of the accumulation again.
// Every rank. Errors  as of these three functions.
ACCEL_EXPORT int accel_step(accel_model* model, double max_grad_norm, accel_step_result* result);

// Runs the model on the inputs that are bound. In training mode the first forward since the last accel_optimizer_step() begins a
// batch. Every rank. Errors  INVALID_ARGUMENT, naming the input: it is missing, or its shape is not the graph's; INTERNAL: an
// operator failed; PEER_LOST, PROCESS_GROUP.
ACCEL_EXPORT int accel_forward(accel_model* model);
// An output of the last forward: its memory, read-only, valid until the next forward or accel_destroy(). name: NULL: "loss", or
// the only output. Costs a copy when the output is on another device or in another memory order. Errors  INVALID_ARGUMENT: no such
// output; NOT_INITIALIZED: no forward yet.
ACCEL_EXPORT int accel_get_output(accel_model* model, const char* name, accel_array* array);
// The same, copied into the program's memory, which needs the dtype and the shape of the output. Errors  also INVALID_ARGUMENT,
// SHAPE_MISMATCH: it has another.
ACCEL_EXPORT int accel_read_output(accel_model* model, const char* name, const accel_array* array);
// Computes gradients from an output of the last forward, and averages them over the ranks at the end of an accumulation. gradient:
// the gradient of the program's loss with respect to the output, with the output's dtype and shape; NULL: the output is the loss,
// one number. Once for each forward. Every rank. Errors  INVALID_ARGUMENT, SHAPE_MISMATCH, NOT_INITIALIZED: no forward was kept
// for a backward; PEER_LOST, PROCESS_GROUP.
ACCEL_EXPORT int accel_backward(accel_model* model, const char* name, const accel_array* gradient);
// Copies the gradient of an input (accel_require_input_gradient()) from the last backward into memory with the input's dtype and
// shape. It is the gradient of this rank's batch alone, without accumulation and scaling. Errors  NOT_INITIALIZED: there is none.
ACCEL_EXPORT int accel_read_input_gradient(accel_model* model,
                                           const char* name,
                                           const accel_array* array);
// Ends a batch. At the end of an accumulation it clips the norm of the gradients to max_grad_norm (0: no clipping; INFINITY: only
// measures), steps the optimizer and the schedule, and clears the gradients. result: may be NULL; its loss is NaN. Every rank.
ACCEL_EXPORT int accel_optimizer_step(accel_model* model,
                                      double max_grad_norm,
                                      accel_step_result* result);

// Sets the learning rate of the next step, for a program with its own schedule; not together with an accel_schedule.
ACCEL_EXPORT int accel_get_lr(const accel_model* model, double* lr);
ACCEL_EXPORT int accel_set_lr(accel_model* model, double lr);

// --- between the ranks; every rank

enum accel_reduction { ACCEL_SUM = 0, ACCEL_MEAN = 1, ACCEL_MAX = 2 };

// Returns when every rank has called it.
ACCEL_EXPORT int accel_barrier(accel_accelerator* accelerator);
// Replaces the values of `array` by the sum, mean or maximum over all ranks. Errors  SHAPE_MISMATCH: the arrays of the ranks
// differ; INVALID_ARGUMENT: the mean of whole numbers; PEER_LOST, PROCESS_GROUP.
ACCEL_EXPORT int accel_reduce(accel_accelerator* accelerator,
                              const accel_array* array,
                              int reduction);
// Writes the arrays of all ranks, one after another along the first dimension, to `gathered`: it has the same dtype and shape, but
// is world_size times as long. An array without dimensions counts as length 1.
ACCEL_EXPORT int accel_gather(accel_accelerator* accelerator,
                              const accel_array* array,
                              const accel_array* gathered);
// Overwrites the values with the values of one rank.
ACCEL_EXPORT int accel_broadcast(accel_accelerator* accelerator,
                                 const accel_array* array,
                                 int from_rank);

// --- checkpoints; every rank

// Saves and loads `array` of the program with the state: a step number, the means of a normalization. It has the same size on every
// rank; rank 0's values are saved. It is borrowed until accel_destroy(). Each array needs its own name, and the program that loads
// registers the arrays in the same order.
ACCEL_EXPORT int accel_register_array(accel_accelerator* accelerator,
                                      const char* name,
                                      const accel_array* array);
// Saves parameters, optimizers, schedules, random states and registered arrays to a folder; the folder exists complete or not at all
// (docs/reference/checkpoint_format.md). An older checkpoint of that name is replaced. Errors  DISK_FULL, FILE_IO, CHECKPOINT_EXISTS:
// the path exists and is not a checkpoint; PEER_LOST.
ACCEL_EXPORT int accel_save_state(accel_accelerator* accelerator, const char* folder);
// Loads it into the models and arrays that were prepared and registered; any number of ranks may have saved it. After an error
// nothing has changed. Errors  CHECKPOINT_INCOMPLETE, CHECKPOINT_MISMATCH, CHECKPOINT_VERSION, SAFETENSORS_MISMATCH, FILE_IO,
// PEER_LOST.
ACCEL_EXPORT int accel_load_state(accel_accelerator* accelerator, const char* folder);
// Saves only the weights, for other programs: model.safetensors. Errors  DISK_FULL, FILE_IO, PEER_LOST.
ACCEL_EXPORT int accel_save_model(accel_model* model, const char* folder);

#ifdef __cplusplus
}
#endif
