# Whether the CUDA engine is built, and what it is built from. Included by the top CMakeLists.txt,
# since a language can be enabled there alone. Sets TRAINER_HAS_CUDA, and where it is ON the targets
# trainer_cudnn and, where NCCL is there, trainer_nccl.
set(TRAINER_CUDA auto CACHE STRING "auto | on | off: whether the CUDA engine is built")
set(TRAINER_CUDA_ARCHITECTURES default CACHE STRING
  "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; default: H100 and H200; release: all from A100 on")
set(TRAINER_HAS_CUDA OFF)

# Says why there is no CUDA engine: an error where one was asked for.
macro(trainer_without_cuda why)
  if(TRAINER_CUDA STREQUAL "on")
    message(FATAL_ERROR "CUDA engine: ${why}")
  endif()
  message(STATUS "CUDA engine: left out, ${why}")
endmacro()

# Where packages of conda and pip put NVIDIA's libraries, besides the usual places.
set(trainer_cuda_hints $ENV{CUDNN_ROOT} $ENV{NCCL_ROOT} $ENV{CONDA_PREFIX})
if(DEFINED ENV{VIRTUAL_ENV})
  file(GLOB trainer_cuda_wheels $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*)
  list(APPEND trainer_cuda_hints ${trainer_cuda_wheels})
endif()

# trainer_find_library(NAME header names...): an imported target trainer_NAME, where both are found.
# Wheels ship libraries by their full names only, so those count as well. It is linked by its path
# without rpath to stubs of the driver.
function(trainer_find_library name header)
  string(TOUPPER ${name} upper)
  find_path(${upper}_INCLUDE_DIR ${header}
    HINTS ${${upper}_ROOT} ${trainer_cuda_hints} ${CUDAToolkit_INCLUDE_DIRS}
    PATH_SUFFIXES include)
  find_library(${upper}_LIBRARY NAMES ${ARGN} NAMES_PER_DIR
    HINTS ${${upper}_ROOT} ${trainer_cuda_hints} ${CUDAToolkit_LIBRARY_DIR}
    PATH_SUFFIXES lib lib64)
  if(${upper}_INCLUDE_DIR AND ${upper}_LIBRARY)
    add_library(trainer_${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(trainer_${name} PROPERTIES IMPORTED_LOCATION ${${upper}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${${upper}_INCLUDE_DIR})
  endif()
endfunction()

if(TRAINER_CUDA STREQUAL "off")
  message(STATUS "CUDA engine: left out, as TRAINER_CUDA says")
  return()
elseif(NOT TRAINER_CUDA MATCHES "^(auto|on)$")
  message(FATAL_ERROR "TRAINER_CUDA is auto, on or off, and not ${TRAINER_CUDA}")
elseif(TRAINER_SANITIZE)
  trainer_without_cuda("the sanitizers and the CUDA runtime do not go together")
  return()
endif()

if(TRAINER_CUDA_ARCHITECTURES STREQUAL "default")
  set(CMAKE_CUDA_ARCHITECTURES 90-real 90-virtual)
elseif(TRAINER_CUDA_ARCHITECTURES STREQUAL "release")
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 90-real 100-real 100-virtual)
else()
  set(CMAKE_CUDA_ARCHITECTURES ${TRAINER_CUDA_ARCHITECTURES})
endif()
# The toolkit's compiler is rarely in the path.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TRAINER_NVCC nvcc
    HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda PATH_SUFFIXES bin)
  if(TRAINER_NVCC)
    set(ENV{CUDACXX} ${TRAINER_NVCC})  # not the variable, which check_language would believe
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  trainer_without_cuda("no nvcc that works with this C++ compiler (CUDA Toolkit 12 or 13)")
  return()
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
# CMake 3.25 does not know nvcc's C++20.
foreach(kind STANDARD EXTENSION)
  if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O2 -g -lineinfo")
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

find_package(CUDAToolkit QUIET)
trainer_find_library(cudnn cudnn.h cudnn libcudnn.so.9)
trainer_find_library(nccl nccl.h nccl libnccl.so.2)
set(cudnn_version 0)
if(TARGET trainer_cudnn)
  file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h cudnn_version
    REGEX "define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
  string(REGEX MATCHALL "[0-9]+" cudnn_version "${cudnn_version}")
  list(JOIN cudnn_version "." cudnn_version)
endif()
if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION VERSION_LESS 12)
  trainer_without_cuda("it needs CUDA Toolkit 12 or newer")
elseif(NOT TARGET CUDA::cublasLt)
  trainer_without_cuda("the toolkit has no cuBLASLt")
elseif(cudnn_version VERSION_LESS 9)
  trainer_without_cuda("no cuDNN 9 (set CUDNN_ROOT where it is)")
else()
  set(TRAINER_HAS_CUDA ON)
  message(STATUS "CUDA engine: CUDA ${CUDAToolkit_VERSION}, cuDNN ${cudnn_version}, for ${CMAKE_CUDA_ARCHITECTURES}")
endif()
