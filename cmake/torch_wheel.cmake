# LibTorch from the wheel torch==2.11.0, as imported targets of our own.
#
# The wheel's find_package(Torch) insists on a CUDA toolkit, and its `libtorch` pulls libtorch_cuda in; a
# CPU-only start-up wants libtorch_cpu and libc10 alone. So: torch::cpu, found below ACCEL_TORCH_ROOT.
include_guard(GLOBAL)

set(ACCEL_TORCH_VERSION 2.11.0)
set(ACCEL_TORCH_ROOT "" CACHE PATH "the torch package folder of a wheel (site-packages/torch)")
if(NOT ACCEL_TORCH_ROOT)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.deps/torch/lib/python3*/site-packages/torch)
  list(GET candidates 0 ACCEL_TORCH_ROOT)
endif()
if(NOT EXISTS ${ACCEL_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch was not found in '${ACCEL_TORCH_ROOT}'. Run scripts/setup.sh, or configure with "
                      "-DACCEL_TORCH_ROOT=<site-packages>/torch, or -DACCEL_WITH_TORCH=OFF")
endif()
file(READ ${ACCEL_TORCH_ROOT}/version.py version_py)
if(NOT version_py MATCHES "__version__ = '${ACCEL_TORCH_VERSION}")
  message(FATAL_ERROR "${ACCEL_TORCH_ROOT} is not torch ${ACCEL_TORCH_VERSION}: ${version_py}")
endif()

add_library(torch_cpu_lib SHARED IMPORTED)
set_target_properties(torch_cpu_lib PROPERTIES IMPORTED_LOCATION ${ACCEL_TORCH_ROOT}/lib/libtorch_cpu.so)
add_library(torch_c10_lib SHARED IMPORTED)
set_target_properties(torch_c10_lib PROPERTIES IMPORTED_LOCATION ${ACCEL_TORCH_ROOT}/lib/libc10.so)

add_library(torch_cpu INTERFACE)
add_library(torch::cpu ALIAS torch_cpu)
target_include_directories(torch_cpu SYSTEM INTERFACE
  ${ACCEL_TORCH_ROOT}/include ${ACCEL_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(torch_cpu INTERFACE torch_cpu_lib torch_c10_lib)
target_link_options(torch_cpu INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs)
