! Every rank says who it is and the sum of all ranks.
program consumer
  use accel
  implicit none
  type(accel_accelerator) :: accelerator
  integer :: total

  if (accel_create(accelerator) /= accel_ok) error stop "no accelerator"
  total = accel_rank(accelerator) + 1
  if (accel_reduce(accelerator, total, accel_sum) /= accel_ok) error stop "no sum"
  print '(3(a, i0))', "rank ", accel_rank(accelerator), " of ", accel_world_size(accelerator), ": sum ", total
  if (accel_destroy(accelerator) /= accel_ok) error stop "no end"
end program
