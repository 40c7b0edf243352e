/* The pieces of a step do what accel_step() does, a gradient of the program's own leads where the loss leads, schedules set the rates,
 * and evaluation keeps nothing. pieces MODEL FOLDER */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <accel/c/accel.h>

#include "trainer.h"

static float x[kElements], target[kElements];
static accel_array x_array = {x, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
static accel_array target_array = {target, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};

static void fail(int line, const char* what) {
  fprintf(stderr, "pieces.c:%d: %s\n%s\n", line, what, accel_last_error());
  exit(1);
}
#define CHECK(call) \
  if (call) fail(__LINE__, #call)
#define REQUIRE(condition) \
  if (!(condition)) fail(__LINE__, #condition)

static accel_model* model_of(accel_accelerator* accelerator, const char* path) {
  accel_model* model = NULL;
  accel_optimizer_options adamw;
  CHECK(accel_load_model(accelerator, path, NULL, &model));
  CHECK(accel_optimizer_options_init(&adamw, "adamw"));
  adamw.lr = 0.0625;
  CHECK(accel_prepare(model, &adamw, NULL));
  CHECK(accel_bind_input(model, "x", &x_array));
  CHECK(accel_bind_input(model, "target", &target_array));
  return model;
}

/* Three models see the same batches: one in whole steps, one in pieces, one from the gradient of its field. */
static void compare_steps(accel_accelerator* accelerator, const char* path) {
  static float y[kElements], gradient[kElements];
  accel_array y_array = {y, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  accel_array gradient_array = {gradient, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  accel_array view;
  accel_model* const whole = model_of(accelerator, path);
  accel_model* const pieces = model_of(accelerator, path);
  accel_model* const own = model_of(accelerator, path);
  int step, i;
  REQUIRE(strcmp(accel_input_name(whole, 1), "target") == 0 && accel_input_name(whole, 2) == NULL);
  REQUIRE(strcmp(accel_output_name(whole, 1), "y") == 0 && accel_output_name(whole, -1) == NULL);
  for (step = 0; step < 3; ++step) {
    accel_step_result result, of_pieces, of_own;
    float loss;
    fill_batch(step, 0, x, target);
    CHECK(accel_step(whole, 0.5, &result));
    CHECK(accel_forward(pieces));
    CHECK(accel_get_output(pieces, NULL, &view));
    REQUIRE(view.num_dims == 0 && view.dtype == ACCEL_FLOAT32);
    memcpy(&loss, view.data, sizeof loss);
    REQUIRE((double)loss == result.loss);
    CHECK(accel_backward(pieces, "loss", NULL));
    CHECK(accel_optimizer_step(pieces, 0.5, &of_pieces));
    REQUIRE(of_pieces.grad_norm == result.grad_norm && of_pieces.stepped == 1 && isnan(of_pieces.loss));

    CHECK(accel_forward(own));
    CHECK(accel_read_output(own, "y", &y_array));
    /* Of the mean of squares, as the graph's own backward has it: 2/n is a power of two times 1/3, so roundings may differ. */
    for (i = 0; i < kElements; ++i) gradient[i] = 2.0f / kElements * (y[i] - target[i]);
    CHECK(accel_backward(own, "y", &gradient_array));
    CHECK(accel_optimizer_step(own, 0.5, &of_own));
    /* Each of some hundred products of a gradient is rounded by 2^-24 of itself; AdamW's steps carry that on. */
    REQUIRE(fabs(of_own.grad_norm - result.grad_norm) < 100 * (step + 1) * ldexp(result.grad_norm, -24));
  }
}

/* The derivative by the input: of y = x + f(x), against differences of the loss. */
static void differentiate_input(accel_accelerator* accelerator, const char* path) {
  static float slope[kElements], again[kElements];
  accel_array slope_array = {slope, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  accel_array again_array = {again, ACCEL_FLOAT32, 3, {kRows, kNy, kNx}};
  int i;
  accel_model* const model = model_of(accelerator, path);
  accel_array view;
  float up, down, middle;
  double rise;
  const float h = 0.015625f;
  fill_batch(0, 0, x, target);
  CHECK(accel_require_input_gradient(model, "x", 1));
  CHECK(accel_set_training(model, 0));
  CHECK(accel_forward(model));
  CHECK(accel_backward(model, NULL, NULL));
  CHECK(accel_read_input_gradient(model, "x", &slope_array));
  /* In training mode it is the same, although a step has two batches. */
  CHECK(accel_set_training(model, 1));
  CHECK(accel_forward(model));
  CHECK(accel_backward(model, NULL, NULL));
  CHECK(accel_read_input_gradient(model, "x", &again_array));
  for (i = 0; i < kElements; ++i) REQUIRE(again[i] == slope[i]);
  CHECK(accel_set_training(model, 0));
  CHECK(accel_require_input_gradient(model, "x", 0));
  middle = x[5];
  x[5] = middle + h;
  CHECK(accel_forward(model));
  CHECK(accel_get_output(model, "loss", &view));
  memcpy(&up, view.data, sizeof up);
  REQUIRE(accel_backward(model, NULL, NULL) == ACCEL_ERROR_INVALID_ARGUMENT ||
          accel_backward(model, NULL, NULL) == ACCEL_ERROR_NOT_INITIALIZED);
  x[5] = middle - h;
  CHECK(accel_forward(model));
  CHECK(accel_get_output(model, "loss", &view));
  memcpy(&down, view.data, sizeof down);
  rise = ((double)up - down) / (2 * h);
  /* h^2 times a third derivative below 1, and two losses near 1 that are rounded by 2^-24 over 2h. */
  REQUIRE(fabs(rise - slope[5]) < 3e-4 && fabs(rise) > 1e-3);
}

/* Of schedules that reference.cc does not have: the rate of each step. */
static void follow_schedule(accel_accelerator* accelerator,
                            const char* path,
                            const accel_schedule* schedule,
                            const double* factors) {
  accel_optimizer_options sgd;
  accel_step_result result;
  accel_model* model = NULL;
  double next = 0;
  int step;
  CHECK(accel_load_model(accelerator, path, NULL, &model));
  CHECK(accel_optimizer_options_init(&sgd, "sgd"));
  sgd.lr = 0.25;
  CHECK(accel_prepare(model, &sgd, schedule));
  CHECK(accel_bind_input(model, "x", &x_array));
  CHECK(accel_bind_input(model, "target", &target_array));
  for (step = 0; step < 6; ++step) {
    CHECK(accel_get_lr(model, &next));
    CHECK(accel_step(model, 0, &result));
    REQUIRE(result.lr == 0.25 * factors[step] && next == result.lr && isnan(result.grad_norm));
  }
  REQUIRE(accel_set_lr(model, 0.5) == ACCEL_ERROR_INVALID_ARGUMENT);
}

static void follow_schedules(accel_accelerator* accelerator, const char* path) {
  static const double falling[] = {0, 1, 1, 0.5, 0.5, 0.25};
  static const double rising[] = {0, 0.25, 0.5, 0.75, 1, 1};
  accel_schedule schedule;
  CHECK(accel_schedule_init(&schedule, "step"));
  schedule.num_warmup_steps = 1;
  schedule.step_size = 2;
  schedule.gamma = 0.5;
  follow_schedule(accelerator, path, &schedule, falling);
  CHECK(accel_schedule_init(&schedule, "constant"));
  schedule.num_warmup_steps = 4;
  follow_schedule(accelerator, path, &schedule, rising);
}

static void exchange(accel_accelerator* accelerator) {
  int64_t number = 7, all[1] = {0};
  accel_array one = {NULL, ACCEL_INT64, 0, {0}};
  accel_array list = {NULL, ACCEL_INT64, 1, {1}};
  one.data = &number;
  list.data = all;
  CHECK(accel_reduce(accelerator, &one, ACCEL_SUM));
  CHECK(accel_gather(accelerator, &one, &list));
  CHECK(accel_broadcast(accelerator, &one, 0));
  CHECK(accel_barrier(accelerator));
  REQUIRE(number == 7 && all[0] == 7);
}

int main(int count, char** values) {
  accel_accelerator* accelerator = NULL;
  accel_options options;
  accel_optimizer_options sgd;
  double lr = 0;
  accel_model* model;
  if (count != 3) return 2;
  accel_options_init(&options);
  options.cpu = 1;
  CHECK(accel_create(&options, &accelerator));
  REQUIRE(accel_rank(accelerator) == 0 && accel_world_size(accelerator) == 1);
  REQUIRE(accel_local_rank(accelerator) == 0 && accel_restart_count(accelerator) == 0);
  CHECK(accel_set_seed(accelerator, 7, 1));
  compare_steps(accelerator, values[1]);
  follow_schedules(accelerator, values[1]);
  exchange(accelerator);
  model = model_of(accelerator, values[1]);
  CHECK(accel_set_lr(model, 0.25));
  CHECK(accel_get_lr(model, &lr));
  REQUIRE(lr == 0.25);
  CHECK(accel_save_model(model, values[2]));
  CHECK(accel_destroy(&accelerator));
  /* Another one may follow. */
  options.gradient_accumulation_steps = 2;
  CHECK(accel_create(&options, &accelerator));
  differentiate_input(accelerator, values[1]);
  CHECK(accel_load_model(accelerator, values[1], NULL, &model));
  CHECK(accel_optimizer_options_init(&sgd, "sgd"));
  REQUIRE(accel_prepare(model, &sgd, NULL) == ACCEL_ERROR_UNSUPPORTED);
  CHECK(accel_prepare(model, NULL, NULL));
  CHECK(accel_destroy(&accelerator));
  return 0;
}
