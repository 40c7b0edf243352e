/* What the C interface refuses: the code of each mistake, and words that name it. faults MODEL FOLDER */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <accel/c/accel.h>

static int num_faults = 0;

static void expect(int line, int code, int expected, const char* words) {
  if (code == expected && (expected == ACCEL_OK || strstr(accel_last_error(), words) != NULL)) return;
  fprintf(stderr, "faults.c:%d: code %d (%s), expected %d and '%s': %s\n", line, code,
          accel_error_id(code), expected, words, accel_last_error());
  ++num_faults;
}
#define EXPECT(call, code, words) expect(__LINE__, call, code, words)
#define INVALID ACCEL_ERROR_INVALID_ARGUMENT

static void check_options(accel_accelerator** accelerator) {
  accel_communicator communicator = {0, 2, 0, 2, NULL};
  accel_options options;
  accel_options_init(&options);
  options.cpu = 1;
  options.strategy = "magic";
  EXPECT(accel_create(&options, accelerator), INVALID, "choose ddp, zero1, zero2 or full_shard");
  options.strategy = NULL;
  options.mixed_precision = "fp7";
  EXPECT(accel_create(&options, accelerator), INVALID, "fp7");
  options.mixed_precision = NULL;
  options.gradient_accumulation_steps = 0;
  EXPECT(accel_create(&options, accelerator), INVALID, "gradient_accumulation_steps is 0");
  options.gradient_accumulation_steps = 1;
  options.timeout = -1;
  EXPECT(accel_create(&options, accelerator), INVALID, "options.timeout is -1");
  options.timeout = 60;
  options.communicator = &communicator;
  EXPECT(accel_create(&options, accelerator), INVALID, "expected HOST:PORT/TOKEN");
  communicator.address = "localhost:70000/x";
  EXPECT(accel_create(&options, accelerator), INVALID, "'localhost:70000/x'");
  communicator.rank = 2;
  EXPECT(accel_create(&options, accelerator), INVALID, "rank is 2, expected from 0 to 1");
  communicator.rank = 1;
  communicator.local_world_size = 3;
  EXPECT(accel_create(&options, accelerator), INVALID, "local_world_size is 3");
  communicator.local_world_size = 2;
  communicator.address = "127.0.0.1:1/nobody";
  options.store_timeout = 0.2;
  EXPECT(accel_create(&options, accelerator), ACCEL_ERROR_STORE_UNREACHABLE, "127.0.0.1:1 did not answer");
  /* After all that it begins as if nothing had been. */
  communicator = (accel_communicator){0, 1, 0, 1, NULL};
  EXPECT(accel_create(&options, accelerator), ACCEL_OK, "");
  EXPECT(accel_create(&options, accelerator), INVALID, "has an accelerator already");
}

static void check_rendezvous(void) {
  accel_rendezvous* rendezvous = NULL;
  EXPECT(accel_rendezvous_open("no such host", &rendezvous), INVALID, "'no such host'");
  EXPECT(accel_rendezvous_open("192.0.2.1", &rendezvous), INVALID, "an address of it");
  EXPECT(accel_rendezvous_open("127.0.0.1", NULL), INVALID, "rendezvous is NULL");
  EXPECT(accel_rendezvous_open("127.0.0.1", &rendezvous), ACCEL_OK, "");
  if (strncmp(accel_rendezvous_address(rendezvous), "127.0.0.1:", 10) != 0) ++num_faults;
  accel_rendezvous_close(&rendezvous);
  accel_rendezvous_close(&rendezvous);
  if (rendezvous != NULL || accel_rendezvous_address(rendezvous) != NULL) ++num_faults;
}

static void check_null(void) {
  accel_step_result result;
  accel_model* model = NULL;
  EXPECT(accel_create(NULL, NULL), INVALID, "accelerator is NULL");
  EXPECT(accel_load_model(NULL, "x.pt2", NULL, &model), INVALID, "accelerator is NULL");
  EXPECT(accel_prepare(NULL, NULL, NULL), INVALID, "model is NULL");
  EXPECT(accel_step(NULL, 1.0, &result), INVALID, "calling accel_step()");
  EXPECT(accel_forward(NULL), INVALID, "model is NULL");
  EXPECT(accel_save_state(NULL, "x"), INVALID, "accelerator is NULL");
  EXPECT(accel_barrier(NULL), INVALID, "accelerator is NULL");
  EXPECT(accel_optimizer_options_init(NULL, "adamw"), INVALID, "options is NULL");
  if (accel_rank(NULL) != -1 || accel_input_name(NULL, 0) != NULL) ++num_faults;
}

static void check_optimizers(accel_model* model) {
  accel_optimizer_options options;
  accel_schedule schedule;
  EXPECT(accel_optimizer_options_init(&options, "muon"), INVALID, "'muon'");
  EXPECT(accel_optimizer_options_init(&options, "adamw"), ACCEL_OK, "");
  options.momentum = 0.5;
  EXPECT(accel_prepare(model, &options, NULL), INVALID, "momentum is 0.5");
  options.momentum = 0;
  options.beta2 = 1;
  EXPECT(accel_prepare(model, &options, NULL), INVALID, "beta2 is 1.0");
  options.beta2 = 0.999;
  options.lr = -1;
  EXPECT(accel_prepare(model, &options, NULL), INVALID, "lr is -1");
  options.lr = 1e-3;
  EXPECT(accel_schedule_init(&schedule, "square"), INVALID, "'square'");
  EXPECT(accel_schedule_init(&schedule, "cosine"), ACCEL_OK, "");
  EXPECT(accel_prepare(model, &options, &schedule), INVALID, "num_training_steps is 0");
  EXPECT(accel_prepare(model, NULL, &schedule), INVALID, "no optimizer");
  EXPECT(accel_forward(model), ACCEL_ERROR_NOT_INITIALIZED, "call accel_prepare()");
  EXPECT(accel_prepare(model, &options, NULL), ACCEL_OK, "");
  EXPECT(accel_prepare(model, &options, NULL), INVALID, "prepared already");
  EXPECT(accel_set_lr(model, -1), INVALID, "lr is -1");
}

static void check_arrays(accel_accelerator* accelerator, accel_model* model) {
  static float x[2 * 6 * 4], y[2 * 6 * 4], wrong[2 * 5 * 4];
  accel_array array = {NULL, ACCEL_FLOAT32, 3, {2, 6, 4}};
  accel_array other = {NULL, ACCEL_FLOAT32, 3, {2, 5, 4}};
  accel_array whole = {NULL, ACCEL_INT32, 1, {2}};
  accel_array described;
  int32_t counts[2] = {1, 2};
  accel_step_result result;
  whole.data = counts;
  EXPECT(accel_bind_input(model, "z", &array), INVALID, "its inputs are x, target");
  EXPECT(accel_bind_input(model, "x", &array), INVALID, "data of input 'x' is NULL");
  array.data = x;
  array.dtype = 99;
  EXPECT(accel_bind_input(model, "x", &array), INVALID, "dtype of input 'x' is 99");
  array.dtype = ACCEL_FLOAT32;
  array.num_dims = 16;
  EXPECT(accel_bind_input(model, "x", &array), INVALID, "16 dimensions");
  array.num_dims = 3;
  array.shape[1] = -6;
  EXPECT(accel_bind_input(model, "x", &array), INVALID, "dimension 1 of input 'x' is -6");
  array.shape[1] = 6;
  EXPECT(accel_bind_input(model, "x", &array), ACCEL_OK, "");
  EXPECT(accel_step(model, 0, &result), INVALID, "target");
  other.data = wrong;
  EXPECT(accel_bind_input(model, "target", &other), ACCEL_OK, "");
  EXPECT(accel_step(model, 0, &result), INVALID, "target");
  EXPECT(accel_bind_input(model, "target", &whole), INVALID, "'target' is of the dtype int32, expected float32");
  EXPECT(accel_describe_input(model, "z", &described), INVALID, "'z'");
  EXPECT(accel_describe_input(model, "x", &described), ACCEL_OK, "");
  if (described.dtype != ACCEL_FLOAT32 || described.num_dims != 3 || described.shape[0] != -1 || described.shape[1] != 6) ++num_faults;
  array.data = y;
  EXPECT(accel_bind_input(model, "target", &array), ACCEL_OK, "");
  EXPECT(accel_get_output(model, NULL, &array), ACCEL_ERROR_NOT_INITIALIZED, "no outputs");
  EXPECT(accel_step(model, -1, &result), INVALID, "-1");
  EXPECT(accel_step(model, 0, &result), ACCEL_OK, "");
  EXPECT(accel_get_output(model, "w", &array), INVALID, "its outputs are loss, y");
  EXPECT(accel_read_output(model, "y", &other), ACCEL_ERROR_SHAPE_MISMATCH, "expected [2, 6, 4]");
  other.dtype = ACCEL_FLOAT64;
  EXPECT(accel_read_output(model, "y", &other), INVALID, "dtype float64, expected float32");
  EXPECT(accel_backward(model, NULL, NULL), ACCEL_ERROR_NOT_INITIALIZED, "nothing is kept");
  EXPECT(accel_optimizer_step(model, 0, NULL), ACCEL_ERROR_NOT_INITIALIZED, "no forward");
  EXPECT(accel_forward(model), ACCEL_OK, "");
  EXPECT(accel_backward(model, "y", NULL), ACCEL_ERROR_SHAPE_MISMATCH, "48 elements");
  EXPECT(accel_read_input_gradient(model, "x", &array), ACCEL_ERROR_NOT_INITIALIZED, "has no gradient");
  EXPECT(accel_reduce(accelerator, &whole, ACCEL_MEAN), INVALID, "mean");
  EXPECT(accel_reduce(accelerator, &whole, 7), INVALID, "reduction is 7");
  EXPECT(accel_register_array(accelerator, "counts", &whole), ACCEL_OK, "");
  EXPECT(accel_register_array(accelerator, "counts", &whole), INVALID, "'counts' is registered already");
}

int main(int count, char** values) {
  accel_accelerator* accelerator = NULL;
  accel_model* model = NULL;
  char folder[4096];
  if (count != 3) return 2;
  if (strcmp(accel_last_error(), "") != 0 || strcmp(accel_error_id(ACCEL_OK), "ok") != 0) ++num_faults;
  if (accel_error_id(-1) != NULL || accel_error_id(100000) != NULL) ++num_faults;
  if (strcmp(accel_error_id(ACCEL_ERROR_STORE_UNREACHABLE), "store.unreachable") != 0) ++num_faults;
  check_null();
  check_rendezvous();
  check_options(&accelerator);
  EXPECT(accel_load_model(accelerator, "/no/such.pt2", NULL, &model), ACCEL_ERROR_FILE_IO, "/no/such.pt2");
  EXPECT(accel_load_model(accelerator, values[0], NULL, &model), ACCEL_ERROR_CHECKPOINT_INCOMPLETE, "");
  EXPECT(accel_load_model(accelerator, values[1], NULL, &model), ACCEL_OK, "");
  check_optimizers(model);
  check_arrays(accelerator, model);
  snprintf(folder, sizeof folder, "%s/none", values[2]);
  EXPECT(accel_load_state(accelerator, folder), ACCEL_ERROR_CHECKPOINT_INCOMPLETE, "none");
  EXPECT(accel_save_state(accelerator, "/proc/none"), ACCEL_ERROR_FILE_IO, "/proc/none");
  EXPECT(accel_destroy(&accelerator), ACCEL_OK, "");
  EXPECT(accel_destroy(&accelerator), ACCEL_OK, "");
  if (accelerator != NULL) ++num_faults;
  return num_faults == 0 ? 0 : 1;
}
