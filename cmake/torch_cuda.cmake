# torch::cuda: LibTorch with CUDA, for libaccel_cuda.so alone.
#
# The wheels bring what is linked and CUDA's headers; NCCL's come from the toolkit or from its wheel, and have to be of the version in
# LibTorch, whose options hold a structure of NCCL. No compiler of CUDA is needed.
include_guard(GLOBAL)

set(ACCEL_NCCL_VERSION 2.28)
file(GLOB cuda_places ${ACCEL_TORCH_ROOT}/../nvidia/cu13/include /usr/local/cuda/include /usr/local/cuda-13*/include)
find_path(ACCEL_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_places} NO_DEFAULT_PATH)
# What those include; a wheel of its own.
find_path(ACCEL_CUDA_CRT_INCLUDE crt/host_config.h HINTS ${cuda_places})
find_path(ACCEL_NCCL_INCLUDE nccl.h HINTS ${ACCEL_TORCH_ROOT}/../nvidia/nccl/include ${cuda_places})
# LibTorch's header for NCCL includes those of cuBLAS and cuSPARSE, which a toolkit has, and wheels of 500 MB.
find_path(ACCEL_CUBLAS_INCLUDE NAMES cublas_v2.h HINTS ${cuda_places})
find_path(ACCEL_CUSPARSE_INCLUDE NAMES cusparse.h HINTS ${cuda_places})
set(has_cuda OFF)
if(ACCEL_CUDA_INCLUDE AND ACCEL_CUDA_CRT_INCLUDE AND EXISTS ${ACCEL_TORCH_ROOT}/lib/libtorch_cuda.so AND EXISTS ${ACCEL_TORCH_ROOT}/lib/libc10_cuda.so)
  set(has_cuda ON)
endif()
option(ACCEL_WITH_CUDA "build libaccel_cuda.so, by which libaccel trains on NVIDIA GPUs" ${has_cuda})
if(ACCEL_WITH_CUDA AND NOT has_cuda)
  message(FATAL_ERROR "ACCEL_WITH_CUDA needs CUDA's headers (the wheels nvidia-cuda-runtime and nvidia-cuda-crt, or a toolkit) and libtorch_cuda.so in "
                      "'${ACCEL_TORCH_ROOT}/lib': the wheel torch==${ACCEL_TORCH_VERSION} of PyPI has it")
endif()
if(NOT ACCEL_WITH_CUDA)
  message(STATUS "libaccel_cuda.so is not built (ACCEL_WITH_CUDA is OFF): libaccel trains on CPUs")
  return()
endif()
foreach(name torch_cuda c10_cuda)
  add_library(${name}_lib SHARED IMPORTED)
  set_target_properties(${name}_lib PROPERTIES IMPORTED_LOCATION ${ACCEL_TORCH_ROOT}/lib/lib${name}.so)
endforeach()
file(GLOB cudart_places ${ACCEL_TORCH_ROOT}/../nvidia/cu13/lib /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64)
find_library(ACCEL_CUDART NAMES libcudart.so.13 HINTS ${cudart_places})
add_library(torch_with_cuda INTERFACE)
add_library(torch::cuda ALIAS torch_with_cuda)
target_include_directories(torch_with_cuda SYSTEM INTERFACE ${ACCEL_CUDA_INCLUDE} ${ACCEL_CUDA_CRT_INCLUDE})
target_link_libraries(torch_with_cuda INTERFACE torch_cuda_lib c10_cuda_lib torch_cpu ${ACCEL_CUDART})
if(ACCEL_NCCL_INCLUDE)
  file(STRINGS ${ACCEL_NCCL_INCLUDE}/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_lines}")
  list(JOIN nccl_version "." nccl_version)
endif()
if(NOT ACCEL_NCCL_INCLUDE OR NOT ACCEL_CUBLAS_INCLUDE OR NOT ACCEL_CUSPARSE_INCLUDE)
  message(STATUS "The headers of NCCL, cuBLAS and cuSPARSE were not found: in libaccel_cuda.so ranks exchange through the memory of the host")
elseif(NOT nccl_version STREQUAL ACCEL_NCCL_VERSION)
  message(STATUS "${ACCEL_NCCL_INCLUDE}/nccl.h is NCCL ${nccl_version}, LibTorch has ${ACCEL_NCCL_VERSION}: in libaccel_cuda.so ranks "
                 "exchange through the memory of the host")
else()
  target_include_directories(torch_with_cuda SYSTEM INTERFACE
    ${ACCEL_NCCL_INCLUDE} ${ACCEL_CUBLAS_INCLUDE} ${ACCEL_CUSPARSE_INCLUDE})
  target_compile_definitions(torch_with_cuda INTERFACE USE_C10D_NCCL)
endif()
