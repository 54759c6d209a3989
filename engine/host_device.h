// Marks arithmetic that is written once and compiled for the processor and for the GPU.
#pragma once

#ifdef __CUDACC__
#define TRAINER_HOST_DEVICE __host__ __device__
#else
#define TRAINER_HOST_DEVICE
#endif
