/* Every rank says who it is and the sum of all ranks. */
#include <stdio.h>

#include <accel/c/accel.h>

int main(void) {
  accel_accelerator* accelerator = NULL;
  int32_t sum = 0;
  accel_array array = {NULL, ACCEL_INT32, 0, {0}};
  array.data = &sum;
  if (accel_create(NULL, &accelerator)) goto failed;
  sum = accel_rank(accelerator) + 1;
  if (accel_reduce(accelerator, &array, ACCEL_SUM)) goto failed;
  printf("rank %d of %d: sum %d\n", accel_rank(accelerator), accel_world_size(accelerator), (int)sum);
  if (accel_destroy(&accelerator)) goto failed;
  return 0;
failed:
  fprintf(stderr, "%s\n", accel_last_error());
  return 1;
}
