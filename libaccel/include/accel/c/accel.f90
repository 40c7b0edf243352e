! accel in Fortran: the functions of accel/c/accel.h with Fortran's texts, logicals and arrays. That header describes each function.
!
!   use accel
!   type(accel_accelerator) :: accelerator
!   type(accel_model) :: model
!   call check(accel_create(accelerator))
!   call check(accel_load_model(accelerator, "net.pt2", model))
!   call check(accel_optimizer_options_init(adamw, "adamw"))
!   call check(accel_prepare(model, adamw))
!   call check(accel_bind_input(model, "x", x))          ! real(real32), target :: x(nx, ny, batch)
!   call check(accel_step(model, 1.0d0, step))
!
! Module files belong to one compiler: compile this file with yours (Fortran 2018; tested with gfortran 12) and link with libaccel.
!
! Codes     functions return accel_ok or an accel_error_*; accel_last_error() gives the message.
! Arrays    of any rank, real32, real64, int32 or int64, contiguous. Nothing is copied: a(nx, ny, batch) has the shape
!           (batch, ny, nx) in the model. An array that stays bound (accel_bind_input, accel_register_array) needs the attribute target,
!           and must be in a module, in the main program, or allocated, as long as it is bound. Arrays of other types: accel_array_of().
! Texts     blanks at the end are not part of a name or a path.
!
! Procedures that take arrays exist once for each of the four types, because Fortran has no templates: array_real32 etc. describe the
! memory, and all others differ only in the name.
module accel
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  integer(c_int), parameter, public :: accel_ok = 0
  integer(c_int), parameter, public :: accel_error_internal = 1
  integer(c_int), parameter, public :: accel_error_invalid_argument = 2
  integer(c_int), parameter, public :: accel_error_usage = 3
  integer(c_int), parameter, public :: accel_error_unknown_flag = 4
  integer(c_int), parameter, public :: accel_error_config_unreadable = 5
  integer(c_int), parameter, public :: accel_error_config_syntax = 6
  integer(c_int), parameter, public :: accel_error_config_unknown_key = 7
  integer(c_int), parameter, public :: accel_error_config_invalid_value = 8
  integer(c_int), parameter, public :: accel_error_env_invalid = 9
  integer(c_int), parameter, public :: accel_error_script_missing = 10
  integer(c_int), parameter, public :: accel_error_script_not_executable = 11
  integer(c_int), parameter, public :: accel_error_exec_failed = 12
  integer(c_int), parameter, public :: accel_error_library_missing = 13
  integer(c_int), parameter, public :: accel_error_spawn_failed = 14
  integer(c_int), parameter, public :: accel_error_shim_missing = 15
  integer(c_int), parameter, public :: accel_error_shim_lost = 16
  integer(c_int), parameter, public :: accel_error_protocol = 17
  integer(c_int), parameter, public :: accel_error_worker_failed = 18
  integer(c_int), parameter, public :: accel_error_worker_signaled = 19
  integer(c_int), parameter, public :: accel_error_worker_out_of_memory = 20
  integer(c_int), parameter, public :: accel_error_worker_unkillable = 21
  integer(c_int), parameter, public :: accel_error_restarts_exhausted = 22
  integer(c_int), parameter, public :: accel_error_port_in_use = 23
  integer(c_int), parameter, public :: accel_error_store_unreachable = 24
  integer(c_int), parameter, public :: accel_error_store_timeout = 25
  integer(c_int), parameter, public :: accel_error_store_limit = 26
  integer(c_int), parameter, public :: accel_error_channel_corrupt = 27
  integer(c_int), parameter, public :: accel_error_channel_version = 28
  integer(c_int), parameter, public :: accel_error_log_unwritable = 29
  integer(c_int), parameter, public :: accel_error_topology = 30
  integer(c_int), parameter, public :: accel_error_peer_lost = 31
  integer(c_int), parameter, public :: accel_error_process_group = 32
  integer(c_int), parameter, public :: accel_error_not_initialized = 33
  integer(c_int), parameter, public :: accel_error_shape_mismatch = 34
  integer(c_int), parameter, public :: accel_error_data_sharding = 35
  integer(c_int), parameter, public :: accel_error_safetensors_header = 36
  integer(c_int), parameter, public :: accel_error_safetensors_mismatch = 37
  integer(c_int), parameter, public :: accel_error_checkpoint_incomplete = 38
  integer(c_int), parameter, public :: accel_error_checkpoint_mismatch = 39
  integer(c_int), parameter, public :: accel_error_checkpoint_version = 40
  integer(c_int), parameter, public :: accel_error_checkpoint_exists = 41
  integer(c_int), parameter, public :: accel_error_file_io = 42
  integer(c_int), parameter, public :: accel_error_disk_full = 43
  integer(c_int), parameter, public :: accel_error_out_of_memory = 44
  integer(c_int), parameter, public :: accel_error_agent_unreachable = 45
  integer(c_int), parameter, public :: accel_error_agent_refused = 46
  integer(c_int), parameter, public :: accel_error_agent_running = 47
  integer(c_int), parameter, public :: accel_error_job_unknown = 48
  integer(c_int), parameter, public :: accel_error_authentication = 49
  integer(c_int), parameter, public :: accel_error_tls = 50
  integer(c_int), parameter, public :: accel_error_rendezvous_timeout = 51
  integer(c_int), parameter, public :: accel_error_coordinator_lost = 52
  integer(c_int), parameter, public :: accel_error_cluster_missing = 53
  integer(c_int), parameter, public :: accel_error_unsupported = 54
  integer(c_int), parameter, public :: accel_error_shim_state = 55
  integer(c_int), parameter, public :: accel_error_shim_refused = 56
  integer(c_int), parameter, public :: accel_error_worker_hung = 57
  integer(c_int), parameter, public :: accel_error_etcd_unreachable = 58
  integer(c_int), parameter, public :: accel_error_leadership_lost = 59
  integer(c_int), parameter, public :: accel_error_node_lost = 60
  integer(c_int), parameter, public :: accel_error_preflight_failed = 61
  integer(c_int), parameter, public :: accel_error_not_finite = 62

  integer(c_int), parameter, public :: accel_not_contiguous = -1
  integer(c_int), parameter, public :: accel_bool = 1, accel_uint8 = 2, accel_int8 = 3, accel_int16 = 4, accel_int32 = 5, &
    accel_int64 = 6, accel_float16 = 7, accel_bfloat16 = 8, accel_float32 = 9, accel_float64 = 10, accel_complex64 = 11, &
    accel_complex128 = 12
  integer(c_int), parameter, public :: accel_sum = 0, accel_mean = 1, accel_max = 2
  integer, parameter, public :: accel_address_size = 320
  integer, parameter, public :: accel_max_dims = 15

  type, public :: accel_accelerator
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: accel_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: accel_rendezvous
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  type, public :: accel_communicator
    integer :: rank = 0
    integer :: world_size = 1
    integer :: local_rank = 0
    integer :: local_world_size = 1
    character(accel_address_size) :: address = ""
  end type

  ! Texts that are blank, and a world_size of 0: the launcher's values.
  type, public :: accel_options
    type(accel_communicator) :: communicator = accel_communicator(world_size=0)
    character(16) :: mixed_precision = ""
    character(16) :: strategy = ""
    integer :: gradient_accumulation_steps = 1
    logical :: cpu = .false.
    logical :: find_unused_parameters = .false.
    real(c_double) :: timeout = 1800
    real(c_double) :: store_timeout = 300
  end type

  type, bind(c), public :: accel_array
    type(c_ptr) :: data = c_null_ptr
    integer(c_int) :: dtype = 0
    integer(c_int) :: num_dims = 0
    integer(c_int64_t) :: shape(accel_max_dims) = 0
  end type

  type, bind(c), public :: accel_optimizer_options
    character(kind=c_char) :: name(16) = c_null_char
    real(c_double) :: lr = 0, weight_decay = 0
    real(c_double) :: beta1 = 0, beta2 = 0, eps = 0
    real(c_double) :: momentum = 0, dampening = 0
    integer(c_int) :: nesterov = 0, amsgrad = 0, fused = 0
  end type

  type, bind(c), public :: accel_schedule
    character(kind=c_char) :: name(16) = c_null_char
    integer(c_int64_t) :: num_warmup_steps = 0, num_training_steps = 0, step_size = 0
    real(c_double) :: gamma = 0
  end type

  type, bind(c), public :: accel_step_result
    real(c_double) :: loss = 0, grad_norm = 0, lr = 0
    integer(c_int) :: stepped = 0
  end type

  type, bind(c) :: c_communicator
    integer(c_int) :: rank, world_size, local_rank, local_world_size
    type(c_ptr) :: address
  end type
  type, bind(c) :: c_options
    type(c_ptr) :: communicator, mixed_precision, strategy
    integer(c_int) :: gradient_accumulation_steps, cpu, find_unused_parameters
    real(c_double) :: timeout, store_timeout
  end type

  interface
    function c_rendezvous_open(host, rendezvous) bind(c, name="accel_rendezvous_open") result(code)
      import :: c_int, c_ptr, c_char
      character(kind=c_char), intent(in) :: host(*)
      type(c_ptr), intent(out) :: rendezvous
      integer(c_int) :: code
    end function
    function c_create(options, accelerator) bind(c, name="accel_create") result(code)
      import :: c_int, c_ptr, c_options
      type(c_options), intent(in) :: options
      type(c_ptr), intent(out) :: accelerator
      integer(c_int) :: code
    end function
    function c_destroy(accelerator) bind(c, name="accel_destroy") result(code)
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: accelerator
      integer(c_int) :: code
    end function
    function c_rank(accelerator) bind(c, name="accel_rank") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: accelerator
      integer(c_int) :: code
    end function
    function c_world_size(accelerator) bind(c, name="accel_world_size") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: accelerator
      integer(c_int) :: code
    end function
    function c_local_rank(accelerator) bind(c, name="accel_local_rank") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: accelerator
      integer(c_int) :: code
    end function
    function c_restart_count(accelerator) bind(c, name="accel_restart_count") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: accelerator
      integer(c_int) :: code
    end function
    function c_barrier(accelerator) bind(c, name="accel_barrier") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: accelerator
      integer(c_int) :: code
    end function
    function c_set_seed(accelerator, seed, device_specific) bind(c, name="accel_set_seed") result(code)
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: accelerator
      integer(c_int64_t), value :: seed
      integer(c_int), value :: device_specific
      integer(c_int) :: code
    end function
    function c_load_model(accelerator, path, weights, model) bind(c, name="accel_load_model") result(code)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: accelerator
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: weights
      type(c_ptr), intent(out) :: model
      integer(c_int) :: code
    end function
    function c_optimizer_options_init(options, name) bind(c, name="accel_optimizer_options_init") result(code)
      import :: c_int, c_char, accel_optimizer_options
      type(accel_optimizer_options), intent(out) :: options
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: code
    end function
    function c_schedule_init(schedule, name) bind(c, name="accel_schedule_init") result(code)
      import :: c_int, c_char, accel_schedule
      type(accel_schedule), intent(out) :: schedule
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: code
    end function
    function c_prepare(model, optimizer, schedule) bind(c, name="accel_prepare") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: model
      type(c_ptr), value :: optimizer
      type(c_ptr), value :: schedule
      integer(c_int) :: code
    end function
    function c_bind_input(model, name, array) bind(c, name="accel_bind_input") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(in) :: array
      integer(c_int) :: code
    end function
    function c_describe_input(model, name, array) bind(c, name="accel_describe_input") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(out) :: array
      integer(c_int) :: code
    end function
    function c_require_input_gradient(model, name, required) bind(c, name="accel_require_input_gradient") result(code)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: required
      integer(c_int) :: code
    end function
    function c_set_training(model, training) bind(c, name="accel_set_training") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: model
      integer(c_int), value :: training
      integer(c_int) :: code
    end function
    function c_step(model, max_grad_norm, step) bind(c, name="accel_step") result(code)
      import :: c_int, c_ptr, c_double, accel_step_result
      type(c_ptr), value :: model
      real(c_double), value :: max_grad_norm
      type(accel_step_result), intent(out) :: step
      integer(c_int) :: code
    end function
    function c_forward(model) bind(c, name="accel_forward") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: model
      integer(c_int) :: code
    end function
    function c_read_output(model, name, array) bind(c, name="accel_read_output") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(in) :: array
      integer(c_int) :: code
    end function
    function c_backward_from(model, name, gradient) bind(c, name="accel_backward") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(in) :: gradient
      integer(c_int) :: code
    end function
    function c_backward_loss(model, name, gradient) bind(c, name="accel_backward") result(code)
      import :: c_int, c_ptr
      type(c_ptr), value :: model
      type(c_ptr), value :: name
      type(c_ptr), value :: gradient
      integer(c_int) :: code
    end function
    function c_read_input_gradient(model, name, array) bind(c, name="accel_read_input_gradient") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(in) :: array
      integer(c_int) :: code
    end function
    function c_optimizer_step(model, max_grad_norm, step) bind(c, name="accel_optimizer_step") result(code)
      import :: c_int, c_ptr, c_double, accel_step_result
      type(c_ptr), value :: model
      real(c_double), value :: max_grad_norm
      type(accel_step_result), intent(out) :: step
      integer(c_int) :: code
    end function
    function c_get_lr(model, lr) bind(c, name="accel_get_lr") result(code)
      import :: c_int, c_ptr, c_double
      type(c_ptr), value :: model
      real(c_double), intent(out) :: lr
      integer(c_int) :: code
    end function
    function c_set_lr(model, lr) bind(c, name="accel_set_lr") result(code)
      import :: c_int, c_ptr, c_double
      type(c_ptr), value :: model
      real(c_double), value :: lr
      integer(c_int) :: code
    end function
    function c_reduce(accelerator, array, reduction) bind(c, name="accel_reduce") result(code)
      import :: c_int, c_ptr, accel_array
      type(c_ptr), value :: accelerator
      type(accel_array), intent(in) :: array
      integer(c_int), value :: reduction
      integer(c_int) :: code
    end function
    function c_gather(accelerator, array, gathered) bind(c, name="accel_gather") result(code)
      import :: c_int, c_ptr, accel_array
      type(c_ptr), value :: accelerator
      type(accel_array), intent(in) :: array
      type(accel_array), intent(in) :: gathered
      integer(c_int) :: code
    end function
    function c_broadcast(accelerator, array, from_rank) bind(c, name="accel_broadcast") result(code)
      import :: c_int, c_ptr, accel_array
      type(c_ptr), value :: accelerator
      type(accel_array), intent(in) :: array
      integer(c_int), value :: from_rank
      integer(c_int) :: code
    end function
    function c_register_array(accelerator, name, array) bind(c, name="accel_register_array") result(code)
      import :: c_int, c_ptr, c_char, accel_array
      type(c_ptr), value :: accelerator
      character(kind=c_char), intent(in) :: name(*)
      type(accel_array), intent(in) :: array
      integer(c_int) :: code
    end function
    function c_save_state(accelerator, folder) bind(c, name="accel_save_state") result(code)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: accelerator
      character(kind=c_char), intent(in) :: folder(*)
      integer(c_int) :: code
    end function
    function c_load_state(accelerator, folder) bind(c, name="accel_load_state") result(code)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: accelerator
      character(kind=c_char), intent(in) :: folder(*)
      integer(c_int) :: code
    end function
    function c_save_model(model, folder) bind(c, name="accel_save_model") result(code)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: folder(*)
      integer(c_int) :: code
    end function
    subroutine c_options_init(options) bind(c, name="accel_options_init")
      import :: c_options
      type(c_options), intent(out) :: options
    end subroutine
    subroutine c_rendezvous_close(rendezvous) bind(c, name="accel_rendezvous_close")
      import :: c_ptr
      type(c_ptr), intent(inout) :: rendezvous
    end subroutine
    function c_rendezvous_address(rendezvous) bind(c, name="accel_rendezvous_address") result(text)
      import :: c_ptr
      type(c_ptr), value :: rendezvous
      type(c_ptr) :: text
    end function
    function c_last_error() bind(c, name="accel_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_error_id(code) bind(c, name="accel_error_id") result(text)
      import :: c_int, c_ptr
      integer(c_int), value :: code
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

  interface accel_bind_input
    module procedure bind_input_real32, bind_input_real64, bind_input_int32, bind_input_int64
  end interface
  interface accel_read_output
    module procedure read_output_real32, read_output_real64, read_output_int32, read_output_int64
  end interface
  interface accel_read_input_gradient
    module procedure read_input_gradient_real32, read_input_gradient_real64, read_input_gradient_int32, read_input_gradient_int64
  end interface
  interface accel_backward
    module procedure backward_from_real32, backward_from_real64, backward_from_int32, backward_from_int64, backward_loss
  end interface
  interface accel_reduce
    module procedure reduce_real32, reduce_real64, reduce_int32, reduce_int64
  end interface
  interface accel_broadcast
    module procedure broadcast_real32, broadcast_real64, broadcast_int32, broadcast_int64
  end interface
  interface accel_register_array
    module procedure register_array_real32, register_array_real64, register_array_int32, register_array_int64
  end interface
  interface accel_gather
    module procedure gather_real32, gather_real64, gather_int32, gather_int64
  end interface
  interface accel_array_of
    module procedure array_real32, array_real64, array_int32, array_int64
  end interface

  public :: accel_last_error, accel_error_id, accel_rendezvous_open, accel_rendezvous_address, accel_rendezvous_close
  public :: accel_create, accel_destroy, accel_rank, accel_world_size, accel_local_rank, accel_restart_count, accel_set_seed
  public :: accel_load_model, accel_optimizer_options_init, accel_schedule_init, accel_prepare, accel_bind_input
  public :: accel_bind_array, accel_describe_input, accel_require_input_gradient, accel_set_training, accel_step, accel_forward
  public :: accel_read_output
  public :: accel_backward, accel_read_input_gradient, accel_optimizer_step, accel_get_lr, accel_set_lr, accel_barrier
  public :: accel_reduce, accel_gather, accel_broadcast, accel_register_array, accel_save_state, accel_load_state
  public :: accel_save_model, accel_array_of

contains

  ! A text in the form of C.
  pure function c_text(text) result(characters)
    character(*), intent(in) :: text
    character(kind=c_char) :: characters(len_trim(text) + 1)
    integer :: i
    do i = 1, len_trim(text)
      characters(i) = text(i:i)
    end do
    characters(size(characters)) = c_null_char
  end function

  function fortran_text(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i
    if (.not. c_associated(pointer)) then
      text = ""
      return
    end if
    call c_f_pointer(pointer, characters, [c_strlen(pointer)])
    allocate (character(size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function

  ! C has the dimensions in reverse order. The dtype marks an array with gaps, which C refuses with its own message.
  function array_at(dtype, extents, has_no_gaps) result(array)
    integer(c_int), intent(in) :: dtype
    integer(c_int64_t), intent(in) :: extents(:)
    logical, intent(in) :: has_no_gaps
    type(accel_array) :: array
    array%dtype = merge(dtype, accel_not_contiguous, has_no_gaps)
    array%num_dims = size(extents)
    array%shape(:size(extents)) = extents(size(extents):1:-1)
  end function

  function array_real32(values) result(array)
    real(real32), intent(in), target :: values(..)
    type(accel_array) :: array
    array = array_at(accel_float32, int(shape(values), c_int64_t), is_contiguous(values))
    if (size(values) > 0) array%data = c_loc(values)
  end function

  function array_real64(values) result(array)
    real(real64), intent(in), target :: values(..)
    type(accel_array) :: array
    array = array_at(accel_float64, int(shape(values), c_int64_t), is_contiguous(values))
    if (size(values) > 0) array%data = c_loc(values)
  end function

  function array_int32(values) result(array)
    integer(int32), intent(in), target :: values(..)
    type(accel_array) :: array
    array = array_at(accel_int32, int(shape(values), c_int64_t), is_contiguous(values))
    if (size(values) > 0) array%data = c_loc(values)
  end function

  function array_int64(values) result(array)
    integer(int64), intent(in), target :: values(..)
    type(accel_array) :: array
    array = array_at(accel_int64, int(shape(values), c_int64_t), is_contiguous(values))
    if (size(values) > 0) array%data = c_loc(values)
  end function

  function bind_input_real32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real32), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_bind_input(model%handle, c_text(name), array_real32(values))
  end function

  function bind_input_real64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real64), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_bind_input(model%handle, c_text(name), array_real64(values))
  end function

  function bind_input_int32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int32), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_bind_input(model%handle, c_text(name), array_int32(values))
  end function

  function bind_input_int64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int64), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_bind_input(model%handle, c_text(name), array_int64(values))
  end function

  function read_output_real32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_output(model%handle, c_text(name), array_real32(values))
  end function

  function read_output_real64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_output(model%handle, c_text(name), array_real64(values))
  end function

  function read_output_int32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_output(model%handle, c_text(name), array_int32(values))
  end function

  function read_output_int64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_output(model%handle, c_text(name), array_int64(values))
  end function

  function read_input_gradient_real32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_input_gradient(model%handle, c_text(name), array_real32(values))
  end function

  function read_input_gradient_real64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_input_gradient(model%handle, c_text(name), array_real64(values))
  end function

  function read_input_gradient_int32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_input_gradient(model%handle, c_text(name), array_int32(values))
  end function

  function read_input_gradient_int64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_read_input_gradient(model%handle, c_text(name), array_int64(values))
  end function

  function backward_from_real32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real32), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_backward_from(model%handle, c_text(name), array_real32(values))
  end function

  function backward_from_real64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    real(real64), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_backward_from(model%handle, c_text(name), array_real64(values))
  end function

  function backward_from_int32(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int32), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_backward_from(model%handle, c_text(name), array_int32(values))
  end function

  function backward_from_int64(model, name, values) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    integer(int64), intent(in), target :: values(..)
    integer(c_int) :: code
    code = c_backward_from(model%handle, c_text(name), array_int64(values))
  end function

  function reduce_real32(accelerator, values, reduction) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real32), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: reduction
    integer(c_int) :: code
    code = c_reduce(accelerator%handle, array_real32(values), reduction)
  end function

  function reduce_real64(accelerator, values, reduction) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real64), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: reduction
    integer(c_int) :: code
    code = c_reduce(accelerator%handle, array_real64(values), reduction)
  end function

  function reduce_int32(accelerator, values, reduction) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int32), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: reduction
    integer(c_int) :: code
    code = c_reduce(accelerator%handle, array_int32(values), reduction)
  end function

  function reduce_int64(accelerator, values, reduction) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int64), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: reduction
    integer(c_int) :: code
    code = c_reduce(accelerator%handle, array_int64(values), reduction)
  end function

  function broadcast_real32(accelerator, values, from_rank) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real32), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: from_rank
    integer(c_int) :: code
    code = c_broadcast(accelerator%handle, array_real32(values), from_rank)
  end function

  function broadcast_real64(accelerator, values, from_rank) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real64), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: from_rank
    integer(c_int) :: code
    code = c_broadcast(accelerator%handle, array_real64(values), from_rank)
  end function

  function broadcast_int32(accelerator, values, from_rank) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int32), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: from_rank
    integer(c_int) :: code
    code = c_broadcast(accelerator%handle, array_int32(values), from_rank)
  end function

  function broadcast_int64(accelerator, values, from_rank) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int64), intent(inout), target :: values(..)
    integer(c_int), intent(in) :: from_rank
    integer(c_int) :: code
    code = c_broadcast(accelerator%handle, array_int64(values), from_rank)
  end function

  function register_array_real32(accelerator, name, values) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: name
    real(real32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_register_array(accelerator%handle, c_text(name), array_real32(values))
  end function

  function register_array_real64(accelerator, name, values) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: name
    real(real64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_register_array(accelerator%handle, c_text(name), array_real64(values))
  end function

  function register_array_int32(accelerator, name, values) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: name
    integer(int32), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_register_array(accelerator%handle, c_text(name), array_int32(values))
  end function

  function register_array_int64(accelerator, name, values) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: name
    integer(int64), intent(inout), target :: values(..)
    integer(c_int) :: code
    code = c_register_array(accelerator%handle, c_text(name), array_int64(values))
  end function

  function gather_real32(accelerator, values, gathered) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real32), intent(in), target :: values(..)
    real(real32), intent(inout), target :: gathered(..)
    integer(c_int) :: code
    code = c_gather(accelerator%handle, array_real32(values), array_real32(gathered))
  end function

  function gather_real64(accelerator, values, gathered) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    real(real64), intent(in), target :: values(..)
    real(real64), intent(inout), target :: gathered(..)
    integer(c_int) :: code
    code = c_gather(accelerator%handle, array_real64(values), array_real64(gathered))
  end function

  function gather_int32(accelerator, values, gathered) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int32), intent(in), target :: values(..)
    integer(int32), intent(inout), target :: gathered(..)
    integer(c_int) :: code
    code = c_gather(accelerator%handle, array_int32(values), array_int32(gathered))
  end function

  function gather_int64(accelerator, values, gathered) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int64), intent(in), target :: values(..)
    integer(int64), intent(inout), target :: gathered(..)
    integer(c_int) :: code
    code = c_gather(accelerator%handle, array_int64(values), array_int64(gathered))
  end function

  function accel_rank(accelerator) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(c_int) :: code
    code = c_rank(accelerator%handle)
  end function
  function accel_world_size(accelerator) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(c_int) :: code
    code = c_world_size(accelerator%handle)
  end function
  function accel_local_rank(accelerator) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(c_int) :: code
    code = c_local_rank(accelerator%handle)
  end function
  function accel_restart_count(accelerator) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(c_int) :: code
    code = c_restart_count(accelerator%handle)
  end function
  function accel_barrier(accelerator) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(c_int) :: code
    code = c_barrier(accelerator%handle)
  end function
  function accel_set_training(model, training) result(code)
    type(accel_model), intent(in) :: model
    logical, intent(in) :: training
    integer(c_int) :: code
    code = c_set_training(model%handle, merge(1_c_int, 0_c_int, training))
  end function
  function accel_require_input_gradient(model, name, required) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    logical, intent(in) :: required
    integer(c_int) :: code
    code = c_require_input_gradient(model%handle, c_text(name), merge(1_c_int, 0_c_int, required))
  end function
  function accel_step(model, max_grad_norm, step) result(code)
    type(accel_model), intent(in) :: model
    real(c_double), intent(in) :: max_grad_norm
    type(accel_step_result), intent(out) :: step
    integer(c_int) :: code
    code = c_step(model%handle, max_grad_norm, step)
  end function
  function accel_optimizer_step(model, max_grad_norm, step) result(code)
    type(accel_model), intent(in) :: model
    real(c_double), intent(in) :: max_grad_norm
    type(accel_step_result), intent(out) :: step
    integer(c_int) :: code
    code = c_optimizer_step(model%handle, max_grad_norm, step)
  end function
  function accel_forward(model) result(code)
    type(accel_model), intent(in) :: model
    integer(c_int) :: code
    code = c_forward(model%handle)
  end function
  function accel_get_lr(model, lr) result(code)
    type(accel_model), intent(in) :: model
    real(c_double), intent(out) :: lr
    integer(c_int) :: code
    code = c_get_lr(model%handle, lr)
  end function
  function accel_set_lr(model, lr) result(code)
    type(accel_model), intent(in) :: model
    real(c_double), intent(in) :: lr
    integer(c_int) :: code
    code = c_set_lr(model%handle, lr)
  end function
  function accel_save_state(accelerator, folder) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: folder
    integer(c_int) :: code
    code = c_save_state(accelerator%handle, c_text(folder))
  end function
  function accel_load_state(accelerator, folder) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: folder
    integer(c_int) :: code
    code = c_load_state(accelerator%handle, c_text(folder))
  end function
  function accel_save_model(model, folder) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: folder
    integer(c_int) :: code
    code = c_save_model(model%handle, c_text(folder))
  end function

  ! The message of the last function that failed.
  function accel_last_error() result(text)
    character(:), allocatable :: text
    text = fortran_text(c_last_error())
  end function

  function accel_error_id(code) result(text)
    integer(c_int), intent(in) :: code
    character(:), allocatable :: text
    text = fortran_text(c_error_id(code))
  end function

  function accel_rendezvous_open(host, rendezvous) result(code)
    character(*), intent(in) :: host
    type(accel_rendezvous), intent(out) :: rendezvous
    integer(c_int) :: code
    code = c_rendezvous_open(c_text(host), rendezvous%handle)
  end function

  function accel_rendezvous_address(rendezvous) result(address)
    type(accel_rendezvous), intent(in) :: rendezvous
    character(accel_address_size) :: address
    address = fortran_text(c_rendezvous_address(rendezvous%handle))
  end function

  subroutine accel_rendezvous_close(rendezvous)
    type(accel_rendezvous), intent(inout) :: rendezvous
    call c_rendezvous_close(rendezvous%handle)
  end subroutine

  function accel_create(accelerator, options) result(code)
    type(accel_accelerator), intent(out) :: accelerator
    type(accel_options), intent(in), optional :: options
    integer(c_int) :: code
    type(accel_options) :: wanted
    type(c_options) :: given
    type(c_communicator), target :: communicator
    character(kind=c_char), target :: address(accel_address_size + 1), precision(17), strategy(17)
    call c_options_init(given)
    if (present(options)) wanted = options
    if (wanted%communicator%world_size /= 0) then
      address(:len_trim(wanted%communicator%address) + 1) = c_text(wanted%communicator%address)
      communicator = c_communicator(int(wanted%communicator%rank, c_int), int(wanted%communicator%world_size, c_int), &
        int(wanted%communicator%local_rank, c_int), int(wanted%communicator%local_world_size, c_int), c_loc(address))
      given%communicator = c_loc(communicator)
    end if
    if (wanted%mixed_precision /= "") then
      precision(:len_trim(wanted%mixed_precision) + 1) = c_text(wanted%mixed_precision)
      given%mixed_precision = c_loc(precision)
    end if
    if (wanted%strategy /= "") then
      strategy(:len_trim(wanted%strategy) + 1) = c_text(wanted%strategy)
      given%strategy = c_loc(strategy)
    end if
    given%gradient_accumulation_steps = int(wanted%gradient_accumulation_steps, c_int)
    given%cpu = merge(1_c_int, 0_c_int, wanted%cpu)
    given%find_unused_parameters = merge(1_c_int, 0_c_int, wanted%find_unused_parameters)
    given%timeout = wanted%timeout
    given%store_timeout = wanted%store_timeout
    code = c_create(given, accelerator%handle)
  end function

  function accel_destroy(accelerator) result(code)
    type(accel_accelerator), intent(inout) :: accelerator
    integer(c_int) :: code
    code = c_destroy(accelerator%handle)
  end function

  function accel_set_seed(accelerator, seed, device_specific) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    integer(int64), intent(in) :: seed
    logical, intent(in) :: device_specific
    integer(c_int) :: code
    code = c_set_seed(accelerator%handle, int(seed, c_int64_t), merge(1_c_int, 0_c_int, device_specific))
  end function

  function accel_load_model(accelerator, path, model, weights) result(code)
    type(accel_accelerator), intent(in) :: accelerator
    character(*), intent(in) :: path
    type(accel_model), intent(out) :: model
    character(*), intent(in), optional :: weights
    integer(c_int) :: code
    character(kind=c_char), allocatable, target :: file(:)
    type(c_ptr) :: weights_text
    weights_text = c_null_ptr
    if (present(weights)) then
      file = c_text(weights)
      weights_text = c_loc(file)
    end if
    code = c_load_model(accelerator%handle, c_text(path), weights_text, model%handle)
  end function

  function accel_optimizer_options_init(options, name) result(code)
    type(accel_optimizer_options), intent(out) :: options
    character(*), intent(in) :: name
    integer(c_int) :: code
    code = c_optimizer_options_init(options, c_text(name))
  end function

  function accel_schedule_init(schedule, name) result(code)
    type(accel_schedule), intent(out) :: schedule
    character(*), intent(in) :: name
    integer(c_int) :: code
    code = c_schedule_init(schedule, c_text(name))
  end function

  function accel_prepare(model, optimizer, schedule) result(code)
    type(accel_model), intent(in) :: model
    type(accel_optimizer_options), intent(in), target, optional :: optimizer
    type(accel_schedule), intent(in), target, optional :: schedule
    integer(c_int) :: code
    type(c_ptr) :: optimizer_options, schedule_options
    optimizer_options = c_null_ptr
    schedule_options = c_null_ptr
    if (present(optimizer)) optimizer_options = c_loc(optimizer)
    if (present(schedule)) schedule_options = c_loc(schedule)
    code = c_prepare(model%handle, optimizer_options, schedule_options)
  end function

  ! As accel_bind_input, for an array of another type, whose dimensions are in C order.
  function accel_bind_array(model, name, array) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    type(accel_array), intent(in) :: array
    integer(c_int) :: code
    code = c_bind_input(model%handle, c_text(name), array)
  end function

  ! The shape is in C order.
  function accel_describe_input(model, name, array) result(code)
    type(accel_model), intent(in) :: model
    character(*), intent(in) :: name
    type(accel_array), intent(out) :: array
    integer(c_int) :: code
    code = c_describe_input(model%handle, c_text(name), array)
  end function

  ! From the output that is the loss; accel_backward(model, name, gradient) starts from another output.
  function backward_loss(model) result(code)
    type(accel_model), intent(in) :: model
    integer(c_int) :: code
    code = c_backward_loss(model%handle, c_null_ptr, c_null_ptr)
  end function
end module
