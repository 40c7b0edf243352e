/* Trains field.pt2 through the C interface, on the ranks of accel-launch, or with ACCEL_TEST_MPI on those of an MPI communicator.
 *
 *   trainer MODEL FIRST_STEP END_STEP [FLAG VALUE]...
 *     --strategy ddp|zero1|zero2|full_shard  --precision no|bf16  --accumulate K  --optimizer adamw|adam|sgd
 *     --schedule cosine|...  --load FOLDER  --save FOLDER  --model FOLDER
 *     --adjoint yes  prints derivatives by the input at the end, too
 *     --die STEP  rank 1 is killed before that step
 *     --apart yes  (MPI) each rank says that it is alone on its node
 *     --split N   (MPI) ranks are split by rank % N, and each part trains for itself
 *
 * Prints on rank 0 of each group, for each batch, the bits of the mean loss over the ranks, the norm and the rate. */
#define _POSIX_C_SOURCE 200112L /* SIGKILL */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <accel/c/accel.h>

#include "trainer.h"

#ifdef ACCEL_TEST_MPI
#include <mpi.h>
#endif

static int num_arguments;
static char** arguments;

static const char* flag(const char* name, const char* otherwise) {
  int i;
  for (i = 4; i + 1 < num_arguments; i += 2)
    if (strcmp(arguments[i], name) == 0) return arguments[i + 1];
  return otherwise;
}

static void check(int code) {
  if (code == ACCEL_OK) return;
  fprintf(stderr, "%s\n", accel_last_error());
  exit(code);
}

static uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static double mean_over_ranks(accel_accelerator* accelerator, double value) {
  accel_array array = {NULL, ACCEL_FLOAT64, 1, {1}};
  array.data = &value;
  check(accel_reduce(accelerator, &array, ACCEL_MEAN));
  return value;
}

#ifdef ACCEL_TEST_MPI
static MPI_Comm training_ranks = MPI_COMM_NULL;
static accel_rendezvous* rendezvous = NULL;

/* Joins the ranks of a communicator: rank 0 opens the place where they meet, and MPI tells the others. */
static void join(accel_communicator* communicator, char* address) {
  MPI_Comm node;
  int world_rank;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_split(
      MPI_COMM_WORLD, world_rank % atoi(flag("--split", "1")), world_rank, &training_ranks);
  MPI_Comm_split_type(training_ranks, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(training_ranks, &communicator->rank);
  MPI_Comm_size(training_ranks, &communicator->world_size);
  MPI_Comm_rank(node, &communicator->local_rank);
  MPI_Comm_size(node, &communicator->local_world_size);
  MPI_Comm_free(&node);
  if (strcmp(flag("--apart", "no"), "yes") == 0) {
    communicator->local_rank = 0;
    communicator->local_world_size = 1;
  }
  if (communicator->rank == 0) {
    check(accel_rendezvous_open("127.0.0.1", &rendezvous));
    strcpy(address, accel_rendezvous_address(rendezvous));
  }
  MPI_Bcast(address, ACCEL_ADDRESS_SIZE, MPI_CHAR, 0, training_ranks);
  communicator->address = address;
}

static void leave(void) {
  MPI_Barrier(training_ranks);
  accel_rendezvous_close(&rendezvous);
  MPI_Finalize();
}
#endif

static accel_accelerator* create(void) {
  accel_options options;
  accel_accelerator* accelerator = NULL;
#ifdef ACCEL_TEST_MPI
  static char address[ACCEL_ADDRESS_SIZE];
  accel_communicator communicator;
#endif
  accel_options_init(&options);
  options.cpu = 1;
  options.strategy = flag("--strategy", NULL);
  options.mixed_precision = flag("--precision", NULL);
  options.gradient_accumulation_steps = atoi(flag("--accumulate", "1"));
#ifdef ACCEL_TEST_MPI
  join(&communicator, address);
  options.communicator = &communicator;
#endif
  check(accel_create(&options, &accelerator));
  return accelerator;
}

static void prepare(accel_model* model) {
  accel_optimizer_options optimizer;
  accel_schedule schedule;
  const char* const name = flag("--schedule", NULL);
  check(accel_optimizer_options_init(&optimizer, flag("--optimizer", "adamw")));
  optimizer.lr = 0.0625;
  if (strcmp(optimizer.name, "sgd") == 0) optimizer.momentum = 0.5;
  if (name != NULL) {
    check(accel_schedule_init(&schedule, name));
    schedule.num_warmup_steps = 2;
    schedule.num_training_steps = 8;
  }
  check(accel_prepare(model, &optimizer, name == NULL ? NULL : &schedule));
}

/* The derivative of this batch's loss by x, in evaluation mode: the first of them, on each rank. */
static void print_slopes(accel_accelerator* accelerator, accel_model* model) {
  static float slopes[kElements];
  accel_array array = {slopes, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  check(accel_set_training(model, 0));
  check(accel_require_input_gradient(model, "x", 1));
  check(accel_forward(model));
  check(accel_backward(model, NULL, NULL));
  check(accel_read_input_gradient(model, "x", &array));
  printf("slope of %d: %016" PRIx64 "\n", accel_rank(accelerator), bits_of(slopes[0]));
  fflush(stdout);
}

int main(int count, char** values) {
  static float x[kElements], target[kElements];
  accel_array x_array = {NULL, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  accel_array target_array = {NULL, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  int64_t next = 0;
  accel_array next_array = {NULL, ACCEL_INT64, 0, {0}};
  accel_accelerator* accelerator = NULL;
  accel_model* model = NULL;
  accel_step_result result;
  int step;

  num_arguments = count;
  arguments = values;
  x_array.data = x;
  target_array.data = target;
  next_array.data = &next;
  accelerator = create();
  check(accel_load_model(accelerator, values[1], NULL, &model));
  prepare(model);
  check(accel_register_array(accelerator, "next", &next_array));
  check(accel_bind_input(model, "x", &x_array));
  check(accel_bind_input(model, "target", &target_array));
  next = atoi(values[2]);
  if (flag("--load", NULL) != NULL) check(accel_load_state(accelerator, flag("--load", NULL)));
  for (step = (int)next; step < atoi(values[3]); ++step) {
    double mean;
    if (step == atoi(flag("--die", "-1")) && accel_rank(accelerator) == 1) raise(SIGKILL);
    fill_batch(step, accel_rank(accelerator), x, target);
    check(accel_step(model, 0.5, &result));
    mean = mean_over_ranks(accelerator, result.loss);
    if (accel_rank(accelerator) == 0) {
      printf("%d of %d: %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %d\n",
             step,
             accel_world_size(accelerator),
             bits_of(mean),
             bits_of(isnan(result.grad_norm) ? -1.0 : result.grad_norm),
             bits_of(result.lr),
             result.stepped);
      fflush(stdout);
    }
    next = step + 1;
  }
  if (strcmp(flag("--adjoint", "no"), "yes") == 0) print_slopes(accelerator, model);
  if (flag("--save", NULL) != NULL) check(accel_save_state(accelerator, flag("--save", NULL)));
  if (flag("--model", NULL) != NULL) check(accel_save_model(model, flag("--model", NULL)));
  check(accel_destroy(&accelerator));
#ifdef ACCEL_TEST_MPI
  leave();
#endif
  return 0;
}
