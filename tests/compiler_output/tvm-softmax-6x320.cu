// Instead of the definitions that TVM writes ahead of its kernels.
#include <cuda_fp16.h>
typedef unsigned int uint;

extern "C" __global__ void __launch_bounds__(256) main_kernel(half* __restrict__ output_ptr, half* __restrict__ x_ptr);
extern "C" __global__ void __launch_bounds__(256) main_kernel(half* __restrict__ output_ptr, half* __restrict__ x_ptr) {
  alignas(64) float in_thread_compute_red_shared_ptr[1];
  __shared__ alignas(64) float red_result_ptr[1];
  __shared__ alignas(64) float compute_red_shared_ptr[1];
  alignas(64) float in_thread_compute_red_shared_ptr_1[1];
  __shared__ alignas(64) float red_result_ptr_1[1];
  __shared__ alignas(64) float compute_red_shared_ptr_1[1];
  in_thread_compute_red_shared_ptr[0] = -0x1.fffffep+127f/*-3.402823e+38*/;
  int cse_v1 = ((((int)blockIdx.x) * 320) + ((int)threadIdx.x));
  in_thread_compute_red_shared_ptr[0] = max(in_thread_compute_red_shared_ptr[0], ((float)x_ptr[((((int)blockIdx.x) * 320) + ((int)threadIdx.x))]));
  int cse_v2 = (((((int)blockIdx.x) * 320) + ((int)threadIdx.x)) + 256);
  if (((int)threadIdx.x) < 64) {
    in_thread_compute_red_shared_ptr[0] = max(in_thread_compute_red_shared_ptr[0], ((float)x_ptr[(((((int)blockIdx.x) * 320) + ((int)threadIdx.x)) + 256)]));
  }
  __shared__ alignas(64) float red_buf_staging_ptr[8];
  alignas(64) float t0_ptr[1];
  alignas(64) uint mask_ptr[1];
  alignas(64) float red_buf0_ptr[1];
  alignas(64) float t0_ptr_1[1];
  alignas(64) uint mask_ptr_1[1];
  alignas(64) float red_buf0_ptr_1[1];
  red_buf0_ptr[0] = in_thread_compute_red_shared_ptr[0];
  mask_ptr[0] = __activemask();
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 16, 32);
  red_buf0_ptr[0] = max(red_buf0_ptr[0], t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 8, 32);
  red_buf0_ptr[0] = max(red_buf0_ptr[0], t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 4, 32);
  red_buf0_ptr[0] = max(red_buf0_ptr[0], t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 2, 32);
  red_buf0_ptr[0] = max(red_buf0_ptr[0], t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 1, 32);
  red_buf0_ptr[0] = max(red_buf0_ptr[0], t0_ptr[0]);
  if ((((int)threadIdx.x) % 32) == 0) {
    red_buf_staging_ptr[(((int)threadIdx.x) >> 5)] = red_buf0_ptr[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) < 8) {
    red_buf0_ptr_1[0] = red_buf_staging_ptr[((int)threadIdx.x)];
  }
  mask_ptr_1[0] = __activemask();
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 4, 32);
  red_buf0_ptr_1[0] = max(red_buf0_ptr_1[0], t0_ptr_1[0]);
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 2, 32);
  red_buf0_ptr_1[0] = max(red_buf0_ptr_1[0], t0_ptr_1[0]);
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 1, 32);
  red_buf0_ptr_1[0] = max(red_buf0_ptr_1[0], t0_ptr_1[0]);
  if (((int)threadIdx.x) == 0) {
    ((volatile float*)red_result_ptr)[0] = red_buf0_ptr_1[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    compute_red_shared_ptr[0] = ((volatile float*)red_result_ptr)[0];
  }
  in_thread_compute_red_shared_ptr_1[0] = 0x0p+0f/*0.000000e+00*/;
  __syncthreads();
  in_thread_compute_red_shared_ptr_1[0] = (in_thread_compute_red_shared_ptr_1[0] + expf((((float)x_ptr[((((int)blockIdx.x) * 320) + ((int)threadIdx.x))]) - compute_red_shared_ptr[0])));
  if (((int)threadIdx.x) < 64) {
    in_thread_compute_red_shared_ptr_1[0] = (in_thread_compute_red_shared_ptr_1[0] + expf((((float)x_ptr[(((((int)blockIdx.x) * 320) + ((int)threadIdx.x)) + 256)]) - compute_red_shared_ptr[0])));
  }
  __shared__ alignas(64) float red_buf_staging_ptr_1[8];
  alignas(64) float t0_ptr_2[1];
  alignas(64) uint mask_ptr_2[1];
  alignas(64) float red_buf0_ptr_2[1];
  alignas(64) float t0_ptr_3[1];
  alignas(64) uint mask_ptr_3[1];
  alignas(64) float red_buf0_ptr_3[1];
  red_buf0_ptr_2[0] = in_thread_compute_red_shared_ptr_1[0];
  mask_ptr_2[0] = __activemask();
  t0_ptr_2[0] = __shfl_down_sync(mask_ptr_2[0], red_buf0_ptr_2[0], 16, 32);
  red_buf0_ptr_2[0] = (red_buf0_ptr_2[0] + t0_ptr_2[0]);
  t0_ptr_2[0] = __shfl_down_sync(mask_ptr_2[0], red_buf0_ptr_2[0], 8, 32);
  red_buf0_ptr_2[0] = (red_buf0_ptr_2[0] + t0_ptr_2[0]);
  t0_ptr_2[0] = __shfl_down_sync(mask_ptr_2[0], red_buf0_ptr_2[0], 4, 32);
  red_buf0_ptr_2[0] = (red_buf0_ptr_2[0] + t0_ptr_2[0]);
  t0_ptr_2[0] = __shfl_down_sync(mask_ptr_2[0], red_buf0_ptr_2[0], 2, 32);
  red_buf0_ptr_2[0] = (red_buf0_ptr_2[0] + t0_ptr_2[0]);
  t0_ptr_2[0] = __shfl_down_sync(mask_ptr_2[0], red_buf0_ptr_2[0], 1, 32);
  red_buf0_ptr_2[0] = (red_buf0_ptr_2[0] + t0_ptr_2[0]);
  if ((((int)threadIdx.x) % 32) == 0) {
    red_buf_staging_ptr_1[(((int)threadIdx.x) >> 5)] = red_buf0_ptr_2[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) < 8) {
    red_buf0_ptr_3[0] = red_buf_staging_ptr_1[((int)threadIdx.x)];
  }
  mask_ptr_3[0] = __activemask();
  t0_ptr_3[0] = __shfl_down_sync(mask_ptr_3[0], red_buf0_ptr_3[0], 4, 32);
  red_buf0_ptr_3[0] = (red_buf0_ptr_3[0] + t0_ptr_3[0]);
  t0_ptr_3[0] = __shfl_down_sync(mask_ptr_3[0], red_buf0_ptr_3[0], 2, 32);
  red_buf0_ptr_3[0] = (red_buf0_ptr_3[0] + t0_ptr_3[0]);
  t0_ptr_3[0] = __shfl_down_sync(mask_ptr_3[0], red_buf0_ptr_3[0], 1, 32);
  red_buf0_ptr_3[0] = (red_buf0_ptr_3[0] + t0_ptr_3[0]);
  if (((int)threadIdx.x) == 0) {
    ((volatile float*)red_result_ptr_1)[0] = red_buf0_ptr_3[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    compute_red_shared_ptr_1[0] = ((volatile float*)red_result_ptr_1)[0];
  }
  __syncthreads();
  output_ptr[((((int)blockIdx.x) * 320) + ((int)threadIdx.x))] = ((half)(expf((((float)x_ptr[((((int)blockIdx.x) * 320) + ((int)threadIdx.x))]) - compute_red_shared_ptr[0])) / compute_red_shared_ptr_1[0]));
  if (((int)threadIdx.x) < 64) {
    output_ptr[(((((int)blockIdx.x) * 320) + ((int)threadIdx.x)) + 256)] = ((half)(expf((((float)x_ptr[(((((int)blockIdx.x) * 320) + ((int)threadIdx.x)) + 256)]) - compute_red_shared_ptr[0])) / compute_red_shared_ptr_1[0]));
  }
}

