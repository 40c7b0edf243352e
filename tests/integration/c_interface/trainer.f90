! The training of trainer.c in Fortran, on the ranks of an MPI communicator: the same flags but --optimizer, the same lines.
program trainer
  use, intrinsic :: iso_c_binding
  use, intrinsic :: ieee_arithmetic, only: ieee_is_nan
  use, intrinsic :: iso_fortran_env
  use accel
  use mpi
  implicit none

  integer, parameter :: nx = 4, ny = 6, rows = 2, elements = nx * ny * rows
  real(real32), target :: x(nx, ny, rows), field(nx, ny, rows)
  integer(int64), target :: next
  type(accel_accelerator) :: accelerator
  type(accel_model) :: model
  type(accel_rendezvous) :: rendezvous
  type(accel_options) :: options
  type(accel_optimizer_options) :: adamw
  type(accel_schedule) :: schedule
  type(accel_step_result) :: step
  integer :: ranks, ierr
  real(real64) :: mean

  call join()
  options%cpu = .true.
  options%strategy = flag("--strategy", "")
  options%mixed_precision = flag("--precision", "")
  options%gradient_accumulation_steps = number_in(flag("--accumulate", "1"))
  call check(accel_create(accelerator, options))
  call check(accel_load_model(accelerator, argument(1), model))
  call prepare()
  call check(accel_register_array(accelerator, "next", next))
  call check(accel_bind_input(model, "x", x))
  call check(accel_bind_input(model, "target", field))
  next = number_in(argument(2))
  if (flag("--load", "") /= "") call check(accel_load_state(accelerator, flag("--load", "")))
  do while (next < number_in(argument(3)))
    call fill_batch(int(next), accel_rank(accelerator))
    call check(accel_step(model, 0.5d0, step))
    mean = step%loss
    call check(accel_reduce(accelerator, mean, accel_mean))
    if (ieee_is_nan(step%grad_norm)) step%grad_norm = -1
    if (accel_rank(accelerator) == 0) print '(i0, a, i0, a, 3(z16.16, a), i0)', next, " of ", accel_world_size(accelerator), &
      ": ", transfer(mean, 0_int64), " ", transfer(step%grad_norm, 0_int64), " ", transfer(step%lr, 0_int64), " ", step%stepped
    flush (output_unit)
    next = next + 1
  end do
  if (flag("--save", "") /= "") call check(accel_save_state(accelerator, flag("--save", "")))
  if (flag("--model", "") /= "") call check(accel_save_model(model, flag("--model", "")))
  call check_refusals()
  call check(accel_destroy(accelerator))
  call MPI_Barrier(ranks, ierr)
  call accel_rendezvous_close(rendezvous)
  call MPI_Finalize(ierr)

contains

  subroutine check(code)
    integer(c_int), intent(in) :: code
    if (code == accel_ok) return
    write (error_unit, '(a)') accel_last_error()
    call MPI_Abort(MPI_COMM_WORLD, int(code), ierr)
  end subroutine

  function argument(index) result(text)
    integer, intent(in) :: index
    character(:), allocatable :: text
    integer :: length
    call get_command_argument(index, length=length)
    allocate (character(length) :: text)
    call get_command_argument(index, text)
  end function

  function flag(name, otherwise) result(text)
    character(*), intent(in) :: name, otherwise
    character(:), allocatable :: text
    integer :: i
    text = otherwise
    do i = 4, command_argument_count() - 1, 2
      if (argument(i) == name) text = argument(i + 1)
    end do
  end function

  function number_in(text) result(number)
    character(*), intent(in) :: text
    integer :: number
    read (text, *) number
  end function

  ! The ranks that train together: those of MPI_COMM_WORLD, or with --split N the ones whose rank has the same remainder.
  subroutine join()
    integer :: world_rank, node
    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, world_rank, ierr)
    call MPI_Comm_split(MPI_COMM_WORLD, mod(world_rank, number_in(flag("--split", "1"))), world_rank, ranks, ierr)
    call MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, node, ierr)
    associate (communicator => options%communicator)
      call MPI_Comm_rank(ranks, communicator%rank, ierr)
      call MPI_Comm_size(ranks, communicator%world_size, ierr)
      call MPI_Comm_rank(node, communicator%local_rank, ierr)
      call MPI_Comm_size(node, communicator%local_world_size, ierr)
      if (communicator%rank == 0) then
        call check(accel_rendezvous_open("127.0.0.1", rendezvous))
        communicator%address = accel_rendezvous_address(rendezvous)
      end if
      call MPI_Bcast(communicator%address, accel_address_size, MPI_CHARACTER, 0, ranks, ierr)
    end associate
  end subroutine

  subroutine prepare()
    call check(accel_optimizer_options_init(adamw, "adamw"))
    adamw%lr = 0.0625d0
    if (flag("--schedule", "") == "") then
      call check(accel_prepare(model, adamw))
    else
      call check(accel_schedule_init(schedule, flag("--schedule", "")))
      schedule%num_warmup_steps = 2
      schedule%num_training_steps = 8
      call check(accel_prepare(model, adamw, schedule))
    end if
  end subroutine

  subroutine fill_batch(at, rank)
    integer, intent(in) :: at, rank
    integer :: i, ix, iy, row, place
    i = 0
    do row = 1, rows
      do iy = 1, ny
        do ix = 1, nx
          place = rank * elements + i
          x(ix, iy, row) = real(mod(place * 7 + at * 3, 17), real32) / 8 - 1
          field(ix, iy, row) = real(mod(place * 5 + at, 13), real32) / 8 - 0.75
          i = i + 1
        end do
      end do
    end do
  end subroutine

  ! What is refused stays refused, and what was read has its dimensions in reverse.
  subroutine check_refusals()
    real(real32), target :: y(nx, ny, rows), turned(ny, nx, rows), wide(2 * nx, ny, rows)
    call require(accel_read_output(model, "y", y), accel_ok, "")
    call require(accel_read_output(model, "y", turned), accel_error_shape_mismatch, "expected [2, 6, 4]")
    call require(accel_bind_input(model, "x", wide(1:2*nx:2, :, :)), accel_error_invalid_argument, "has gaps")
    call require(accel_bind_input(model, "nothing", y), accel_error_invalid_argument, "its inputs are")
    if (accel_error_id(accel_error_shape_mismatch) /= "shape.mismatch") error stop "another id"
  end subroutine

  subroutine require(code, expected, words)
    integer(c_int), intent(in) :: code, expected
    character(*), intent(in) :: words
    if (code == expected .and. (words == "" .or. index(accel_last_error(), words) > 0)) return
    write (error_unit, '(a, i0, a, i0, 2a)') "code ", code, ", expected ", expected, ": ", accel_last_error()
    call MPI_Abort(MPI_COMM_WORLD, 99, ierr)
  end subroutine
end program
