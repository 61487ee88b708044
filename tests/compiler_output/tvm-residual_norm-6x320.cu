// Instead of the definitions that TVM writes ahead of its kernels.
#include <cuda_fp16.h>
typedef unsigned int uint;

extern "C" __global__ void __launch_bounds__(256) main_kernel(half* __restrict__ output_v0_ptr, half* __restrict__ output_v1_ptr, half* __restrict__ residual_ptr, half* __restrict__ weight_ptr, half* __restrict__ x_ptr);
extern "C" __global__ void __launch_bounds__(256) main_kernel(half* __restrict__ output_v0_ptr, half* __restrict__ output_v1_ptr, half* __restrict__ residual_ptr, half* __restrict__ weight_ptr, half* __restrict__ x_ptr) {
  alignas(64) float in_thread_T_multiply_red_shared_ptr[1];
  __shared__ alignas(64) float red_result_ptr[1];
  __shared__ alignas(64) float T_multiply_red_shared_ptr[1];
  in_thread_T_multiply_red_shared_ptr[0] = 0x0p+0f/*0.000000e+00*/;
  int cse_v1 = (((int)threadIdx.x) >> 6);
  int cse_v2 = (((int)blockIdx.x) * 320);
  for (int ax2_0 = 0; ax2_0 < 2; ++ax2_0) {
    if (((ax2_0 * 4) + (((int)threadIdx.x) >> 6)) < 5) {
      int cse_v5 = (((((int)blockIdx.x) * 320) + (ax2_0 * 256)) + ((int)threadIdx.x));
      in_thread_T_multiply_red_shared_ptr[0] = (in_thread_T_multiply_red_shared_ptr[0] + ((((float)x_ptr[(((((int)blockIdx.x) * 320) + (ax2_0 * 256)) + ((int)threadIdx.x))]) + ((float)residual_ptr[(((((int)blockIdx.x) * 320) + (ax2_0 * 256)) + ((int)threadIdx.x))])) * (((float)x_ptr[(((((int)blockIdx.x) * 320) + (ax2_0 * 256)) + ((int)threadIdx.x))]) + ((float)residual_ptr[(((((int)blockIdx.x) * 320) + (ax2_0 * 256)) + ((int)threadIdx.x))]))));
    }
  }
  __shared__ alignas(64) float red_buf_staging_ptr[8];
  alignas(64) float t0_ptr[1];
  alignas(64) uint mask_ptr[1];
  alignas(64) float red_buf0_ptr[1];
  alignas(64) float t0_ptr_1[1];
  alignas(64) uint mask_ptr_1[1];
  alignas(64) float red_buf0_ptr_1[1];
  red_buf0_ptr[0] = in_thread_T_multiply_red_shared_ptr[0];
  mask_ptr[0] = __activemask();
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 16, 32);
  red_buf0_ptr[0] = (red_buf0_ptr[0] + t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 8, 32);
  red_buf0_ptr[0] = (red_buf0_ptr[0] + t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 4, 32);
  red_buf0_ptr[0] = (red_buf0_ptr[0] + t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 2, 32);
  red_buf0_ptr[0] = (red_buf0_ptr[0] + t0_ptr[0]);
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 1, 32);
  red_buf0_ptr[0] = (red_buf0_ptr[0] + t0_ptr[0]);
  if ((((int)threadIdx.x) % 32) == 0) {
    red_buf_staging_ptr[(((int)threadIdx.x) >> 5)] = red_buf0_ptr[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) < 8) {
    red_buf0_ptr_1[0] = red_buf_staging_ptr[((int)threadIdx.x)];
  }
  mask_ptr_1[0] = __activemask();
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 4, 32);
  red_buf0_ptr_1[0] = (red_buf0_ptr_1[0] + t0_ptr_1[0]);
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 2, 32);
  red_buf0_ptr_1[0] = (red_buf0_ptr_1[0] + t0_ptr_1[0]);
  t0_ptr_1[0] = __shfl_down_sync(mask_ptr_1[0], red_buf0_ptr_1[0], 1, 32);
  red_buf0_ptr_1[0] = (red_buf0_ptr_1[0] + t0_ptr_1[0]);
  if (((int)threadIdx.x) == 0) {
    ((volatile float*)red_result_ptr)[0] = red_buf0_ptr_1[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    T_multiply_red_shared_ptr[0] = ((volatile float*)red_result_ptr)[0];
  }
  __syncthreads();
  for (int i1_0 = 0; i1_0 < 2; ++i1_0) {
    int cse_v3 = (i1_0 * 256);
    int cse_v4 = ((i1_0 * 4) + (((int)threadIdx.x) >> 6));
    int cse_v6 = (((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x));
    if (((i1_0 * 4) + (((int)threadIdx.x) >> 6)) < 5) {
      output_v0_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))] = ((half)(((float)x_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))]) + ((float)residual_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))])));
    }
    if (((i1_0 * 4) + (((int)threadIdx.x) >> 6)) < 5) {
      output_v1_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))] = ((half)(((((float)x_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))]) + ((float)residual_ptr[(((((int)blockIdx.x) * 320) + (i1_0 * 256)) + ((int)threadIdx.x))])) / sqrtf(((T_multiply_red_shared_ptr[0] / 0x1.4p+8f/*3.200000e+02*/) + 0x1.4f8b588e368f1p-17f/*1.000000e-05*/))) * ((float)weight_ptr[((i1_0 * 256) + ((int)threadIdx.x))])));
    }
  }
}

