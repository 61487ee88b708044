// One scalar instruction repeated: each thread has INDEPENDENT chains, and each step of a chain needs the value of the
// step before. OPERATION names a struct below, whose steps no compiler can combine.

#ifndef OPERATION
#define OPERATION fma_float32
#define INDEPENDENT 1
#endif
#define BODY 512  // steps per round: the instructions that count the rounds are less than 1 %
#define THREADS 1024

// x = k·x + k, which for k = −1 is −1 − x, so that every second step restores x. It reads two registers. With a third
// register for the addend, a scheduler of an H200 started a step every 3 cycles instead of 2 in float64, and every 2
// instead of 1 in float32.
static __device__ __forceinline__ void fold(u32& word, u32 value) { word = (word << 5 | word >> 27) ^ value; }
static __device__ __forceinline__ void fold(u32& word, float value) { fold(word, __float_as_uint(value)); }
static __device__ __forceinline__ void fold(u32& word, double value) {
    const u64 bits = __double_as_longlong(value);
    fold(word, (u32)bits);
    fold(word, (u32)(bits >> 32));
}
static __device__ __forceinline__ void fold(float& sum, float value) { sum += value; }

#define FMA(name, TYPE, multiply_add)                                                                    \
    struct name {                                                                                        \
        typedef TYPE Value;                                                                              \
        typedef u32 Result;                                                                              \
        static __device__ __forceinline__ void step(TYPE& x, const TYPE* k, int) { multiply_add; }       \
    };
// No assembly, because the compiler would wait between assembly instructions; it combines pairs of float32 chains.
#if GB_HIP
FMA(fma_float64, double, x = fma(k[0], x, k[0]))
FMA(fma_float32, float, x = fmaf(k[0], x, k[0]))
FMA(fma_float16x2, u32,
    x = gb_as<u32>(__builtin_elementwise_fma(gb_as<gb_half2>(k[0]), gb_as<gb_half2>(x), gb_as<gb_half2>(k[0]))))
#else
#define PTX(instruction, letter) asm volatile(instruction " %0, %1, %0, %1;" : "+" letter(x) : letter(k[0]))
FMA(fma_float64, double, PTX("fma.rn.f64", "d"))
FMA(fma_float32, float, PTX("fma.rn.f32", "f"))
FMA(fma_float16x2, u32, PTX("fma.rn.f16x2", "r"))
FMA(fma_bfloat16x2, u32, PTX("fma.rn.bf16x2", "r"))

// 32-bit operations: x = k[0]·x + k[1 or 2], the lower half of the product; a bitwise function of three operands; a
// rotation.
struct multiply_add {
    typedef u32 Value;
    typedef u32 Result;
    static __device__ __forceinline__ void step(u32& x, const u32* k, int i) {
        asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(x) : "r"(k[0]), "r"(k[1 + i % 2]));
    }
};
struct logic {  // x ^ (a & b), whose table is (0xf0 & 0xcc) ^ 0xaa (PTX ISA, lop3)
    typedef u32 Value;
    typedef u32 Result;
    static __device__ __forceinline__ void step(u32& x, const u32* k, int i) {
        asm volatile("lop3.b32 %0, %1, %2, %0, 0x6a;" : "+r"(x) : "r"(k[i % 2]), "r"(k[1 + i % 2]));
    }
};
struct shift {
    typedef u32 Value;
    typedef u32 Result;
    static __device__ __forceinline__ void step(u32& x, const u32* k, int i) {
        asm volatile("shf.l.wrap.b32 %0, %0, %0, %1;" : "+r"(x) : "r"(k[i % 2]));
    }
};

// Functions of the special function unit, whose chains approach a fixed point. These chains contain one more
// multiplication or addition: the argument of ex2 is negated, the compiler scales that of cos, and 1 is added to the
// reciprocal.
#define SPECIAL(name, instruction)                                                                       \
    struct name {                                                                                        \
        typedef float Value;                                                                             \
        typedef float Result;                                                                            \
        static __device__ __forceinline__ void step(float& x, const float*, int) {                       \
            asm volatile(instruction : "+f"(x));                                                         \
        }                                                                                                \
    };
SPECIAL(ex2, "{\n.reg .f32 t;\nneg.f32 t, %0;\nex2.approx.ftz.f32 %0, t;\n}")
SPECIAL(rcp, "rcp.approx.ftz.f32 %0, %0;\nadd.ftz.f32 %0, %0, 0f3f800000;")
SPECIAL(rsqrt, "rsqrt.approx.ftz.f32 %0, %0;")
SPECIAL(cosine, "cos.approx.ftz.f32 %0, %0;")
#endif

// All warps of a block begin together. cycles[2·block] is the time until the last warp was done, by the clock of its
// SM, and cycles[2·block + 1] the number of that SM. results[thread] folds the bits of the thread's values after one
// further step, or is their sum if they are approximate. Chain c of lane l begins with the value begin[c·warpSize + l].
extern "C" __global__ void __launch_bounds__(THREADS)
    chains(const OPERATION::Value* operands, const OPERATION::Value* begin, u32 rounds, OPERATION::Result* results,
           u64* cycles) {
    OPERATION::Value k[3], x[INDEPENDENT];
#pragma unroll
    for (int i = 0; i < 3; ++i) k[i] = operands[i];
#pragma unroll
    for (int c = 0; c < INDEPENDENT; ++c) x[c] = begin[c * warpSize + threadIdx.x % warpSize];
    __syncthreads();
    const u64 start = gb_clock();
#pragma unroll 1
    for (u32 round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < BODY / INDEPENDENT; ++i) {
#pragma unroll
            for (int c = 0; c < INDEPENDENT; ++c) OPERATION::step(x[c], k, i);
        }
    }
    __syncthreads();
    const u64 end = gb_clock();
    OPERATION::Result result = 0;
#pragma unroll
    for (int c = 0; c < INDEPENDENT; ++c) {
        OPERATION::step(x[c], k, 0);
        fold(result, x[c]);
    }
    results[gb_thread()] = result;
    if (threadIdx.x == 0) {
        cycles[2 * blockIdx.x] = end - start;
        cycles[2 * blockIdx.x + 1] = gb_unit();
    }
}
