// One wgmma instruction of a warpgroup repeated: D = A·B + C of 64 rows and COLUMNS columns. The sums are in registers,
// B is in shared memory, and A is in shared memory (A_IN_REGISTERS is 0) or in registers (1).
//
// A step adds to the sums of the step before; the matrix unit needs no wait between them. After every IN_FLIGHT steps
// the warpgroup waits: if IN_FLIGHT is 1 for that step, otherwise for all but the last IN_FLIGHT. INPUTS is f16, bf16,
// tf32, e4m3 or s8. SUMS is f32, f16 or s32. INNER, the number of products in a sum, makes 32 bytes. Sums of integers
// grow; with other formats (SIGNED) every second step subtracts, so that the sums return to their start. TRANSPOSES:
// the instruction names the order of A and B.

#ifndef COLUMNS
#define COLUMNS 64
#define INNER 16
#define INPUTS f16
#define SUMS f32
#define SUM_WORD float
#define SUM_WORDS 32
#define SIGNED 1
#define TRANSPOSES 1
#define A_IN_REGISTERS 0
#define IN_FLIGHT 16
#endif
#define THREADS 128
#ifndef BODY
#define BODY 64  // steps per round, a multiple of 16
#endif
#define ROW_BYTES 128
#define ROWS 64
#define STEP_BYTES 32
#define STEPS_A_ROW (ROW_BYTES / STEP_BYTES)

#if !GB_HIP && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define AS_TEXT(word) #word
#define TEXT(word) AS_TEXT(word)
#define JOINED_AS(first, second) first##second
#define JOINED(first, second) JOINED_AS(first, second)
// The numbers of the sums among the operands of the assembly, after the six of A and B.
#define PLACES_2 "%6, %7"
#define PLACES_4 PLACES_2 ", %8, %9"
#define PLACES_8 PLACES_4 ", %10, %11, %12, %13"
#define PLACES_16 PLACES_8 ", %14, %15, %16, %17, %18, %19, %20, %21"
#define PLACES_32 PLACES_16 ", %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37"
#define PLACES_64 PLACES_32 \
    ", %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53" \
    ", %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69"
#define PLACES_128 PLACES_64 \
    ", %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85" \
    ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101" \
    ", %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117" \
    ", %118, %119, %120, %121, %122, %123, %124, %125, %126, %127, %128, %129, %130, %131, %132, %133"
#define WORDS_2(F, x, i) F(x[i]), F(x[i + 1])
#define WORDS_4(F, x, i) WORDS_2(F, x, i), WORDS_2(F, x, i + 2)
#define WORDS_8(F, x, i) WORDS_4(F, x, i), WORDS_4(F, x, i + 4)
#define WORDS_16(F, x, i) WORDS_8(F, x, i), WORDS_8(F, x, i + 8)
#define WORDS_32(F, x, i) WORDS_16(F, x, i), WORDS_16(F, x, i + 16)
#define WORDS_64(F, x, i) WORDS_32(F, x, i), WORDS_32(F, x, i + 32)
#define WORDS_128(F, x, i) WORDS_64(F, x, i), WORDS_64(F, x, i + 64)
#define LETTER_u32 "+r"
#define LETTER_float "+f"
#define SUM(x) JOINED(LETTER_, SUM_WORD)(x)
#define SHAPE "m64n" TEXT(COLUMNS) "k" TEXT(INNER)
#define FORMATS TEXT(SUMS) "." TEXT(INPUTS) "." TEXT(INPUTS)
#if A_IN_REGISTERS
#define OPERANDS "{%2, %3, %4, %5}, %0, 1"
#define ORDERS ", 0"
#else
#define OPERANDS "%1, %0, 1"
#define ORDERS ", 0, 0"
#endif
#if !SIGNED
#define SCALES(sign) ""
#elif TRANSPOSES
#define SCALES(sign) ", 1, " sign ORDERS
#else
#define SCALES(sign) ", 1, " sign
#endif
// The operands are declared as outputs so that their numbers do not depend on the number of sums; they are not changed.
#define WGMMA(sign)                                                                                               \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE "." FORMATS " {" JOINED(PLACES_, SUM_WORDS) "}, " OPERANDS     \
                 SCALES(sign) ";"                                                                                    \
                 : "+l"(b), "+l"(a), "+r"(rows[0]), "+r"(rows[1]), "+r"(rows[2]), "+r"(rows[3]),                      \
                   JOINED(WORDS_, SUM_WORDS)(SUM, c, 0))

static __device__ __forceinline__ void step(SUM_WORD (&c)[SUM_WORDS], u64 a, u64 b, u32 (&rows)[4], bool subtract) {
    if (subtract) WGMMA("-1");
    else WGMMA("1");
}
static __device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <int PENDING>
static __device__ __forceinline__ void finish() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Returns the descriptor of a matrix with consecutive rows of 128 bytes in the 128-byte swizzle. Addresses and the
// distance of groups of eight rows are in units of 16 bytes (PTX ISA, "Matrix Descriptor").
static __device__ __forceinline__ u64 descriptor(const void* shared) {
    return (u64)(gb_shared_address(shared) >> 4 & 0x3fff) | 1ull << 16 | (u64)(8 * ROW_BYTES >> 4) << 32 | 1ull << 62;
}

// `images` are A (64 rows) and B (COLUMNS rows) as they lie in shared memory; `fragments` are the words of A that each
// thread holds for the first to the fourth step of a row. Word i of thread t of the sums begins as begin[128·i + t].
// sums[block·SUM_WORDS + i] has thread after thread, after four further steps, one for each part of a row. `cycles` is
// as in instructions.cu.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    wgmma_chains(const uint4* images, const u32* fragments, const SUM_WORD* begin, u32 rounds, SUM_WORD* sums,
                 u64* cycles) {
    extern __shared__ uint4 unaligned[];
    uint4* matrices = unaligned + (1024 - gb_shared_address(unaligned) % 1024) % 1024 / 16;
    for (u32 i = threadIdx.x; i < (ROWS + COLUMNS) * ROW_BYTES / 16; i += THREADS) matrices[i] = images[i];
    const u64 a = descriptor(matrices), b = descriptor(matrices + ROWS * ROW_BYTES / 16);
    u32 rows[STEPS_A_ROW][4];
    SUM_WORD c[SUM_WORDS];
#pragma unroll
    for (int i = 0; i < 4 * STEPS_A_ROW; ++i) rows[i / 4][i % 4] = fragments[THREADS * i + threadIdx.x];
#pragma unroll
    for (int i = 0; i < SUM_WORDS; ++i) c[i] = begin[THREADS * i + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // makes the threads' writes visible to wgmma
    __syncthreads();
    const u64 start = gb_clock();
    fence();
#pragma unroll 1
    for (u32 round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < BODY; ++i) {
            const int part = i / 2 % STEPS_A_ROW;
            step(c, a + part * (STEP_BYTES / 16), b + part * (STEP_BYTES / 16), rows[part], i % 2);
            if (IN_FLIGHT == 1) {
                finish<0>();
                fence();
            } else if (i % IN_FLIGHT == IN_FLIGHT - 1) finish<1>();
        }
    }
    finish<0>();
    __syncthreads();
    const u64 end = gb_clock();
    fence();
#pragma unroll
    for (int part = 0; part < STEPS_A_ROW; ++part)
        step(c, a + part * (STEP_BYTES / 16), b + part * (STEP_BYTES / 16), rows[part], false);
    finish<0>();
    sums += (u64)blockIdx.x * SUM_WORDS * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUM_WORDS; ++i) sums[THREADS * i] = c[i];
    if (threadIdx.x == 0) {
        cycles[2 * blockIdx.x] = end - start;
        cycles[2 * blockIdx.x + 1] = gb_unit();
    }
}
#endif
