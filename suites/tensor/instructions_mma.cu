// One matrix instruction of a warp repeated: D = A·B + C in INDEPENDENT chains, each of which adds to its own sums.
// Steps of even number multiply by B and those of odd number by −B, so that the sums return to their start.
//
// On NVIDIA the instruction is mma.sync of SHAPE (m16n8k16, …) with INPUTS (f16, …) and SUMS (f32, …). Its operands are
// A_WORDS, B_WORDS and C_WORDS registers of 32 bits, or of 64 for doubles. On AMD it is the built-in function
// INSTRUCTION (mfma_f32_32x32x8f16, …), and the words are elements of the vectors INPUT_VECTOR and SUM_VECTOR. Functions
// for formats of 8, 6 and 4 bits take the number FORMAT of A and of B. Their scales are 1, which the words 0 stand for.

#ifndef INDEPENDENT
#define INDEPENDENT 1
#define THREADS 512
#define SUM_WORD float
#define C_WORDS 4
#if GB_HIP
#define INSTRUCTION mfma_f32_16x16x16f16
#define INPUT_WORD _Float16
#define INPUT_VECTOR gb_half4
#define SUM_VECTOR gb_float4
#define A_WORDS 4
#define B_WORDS 4
#else
#define SHAPE m16n8k16
#define INPUTS f16
#define SUMS f32
#define INPUT_WORD u32
#define A_WORDS 4
#define B_WORDS 2
#endif
#endif
#define BODY 64  // steps per round, which hide the instructions that count the rounds

#if GB_HIP
typedef float gb_float16 __attribute__((ext_vector_type(16)));
typedef double gb_double4 __attribute__((ext_vector_type(4)));
typedef int gb_int4 __attribute__((ext_vector_type(4)));
typedef int gb_int8 __attribute__((ext_vector_type(8)));
typedef int gb_int16 __attribute__((ext_vector_type(16)));
#ifdef __gfx950__
typedef __bf16 gb_brain8 __attribute__((ext_vector_type(8)));
#endif
#define JOINED(prefix, name) prefix##name
#define BUILT_IN(name) JOINED(__builtin_amdgcn_, name)
#ifdef FORMAT
#define MODES FORMAT, FORMAT, 0, 0, 0, 0
#else
#define MODES 0, 0, 0
#endif
static __device__ __forceinline__ void step(SUM_WORD (&c)[C_WORDS], const INPUT_WORD (&a)[A_WORDS],
                                            const INPUT_WORD (&b)[B_WORDS]) {
    const auto sums =
        BUILT_IN(INSTRUCTION)(gb_as<INPUT_VECTOR>(a), gb_as<INPUT_VECTOR>(b), gb_as<SUM_VECTOR>(c), MODES);
    __builtin_memcpy(&c, &sums, sizeof(c));
}
#else
#define AS_TEXT(word) #word
#define TEXT(word) AS_TEXT(word)
#define MMA "mma.sync.aligned." TEXT(SHAPE) ".row.col." TEXT(SUMS) "." TEXT(INPUTS) "." TEXT(INPUTS) "." TEXT(SUMS) " "
// The constraint letter of a register by its type.
#define LETTER_u32 "r"
#define LETTER_float "f"
#define LETTER_double "d"
#define LETTER_OF(word) LETTER_##word
#define LETTER(word) LETTER_OF(word)
#define IN(x) LETTER(INPUT_WORD)(x)
#define SUM(x) "+" LETTER(SUM_WORD)(x)
#define TWO(F, x) F(x[0]), F(x[1])
#define FOUR(F, x) TWO(F, x), F(x[2]), F(x[3])
#define EIGHT(F, x) FOUR(F, x), F(x[4]), F(x[5]), F(x[6]), F(x[7])

static __device__ __forceinline__ void step(SUM_WORD (&c)[C_WORDS], const INPUT_WORD (&a)[A_WORDS],
                                            const INPUT_WORD (&b)[B_WORDS]) {
#if C_WORDS == 4 && A_WORDS == 8
    asm volatile(MMA "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : FOUR(SUM, c) : EIGHT(IN, a), FOUR(IN, b));
#elif C_WORDS == 4 && A_WORDS == 4
    asm volatile(MMA "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : FOUR(SUM, c) : FOUR(IN, a), TWO(IN, b));
#elif C_WORDS == 4 && A_WORDS == 2
    asm volatile(MMA "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : FOUR(SUM, c) : TWO(IN, a), IN(b[0]));
#elif C_WORDS == 2 && A_WORDS == 4
    asm volatile(MMA "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : TWO(SUM, c) : FOUR(IN, a), TWO(IN, b));
#elif C_WORDS == 2 && A_WORDS == 2
    asm volatile(MMA "{%0, %1}, {%2, %3}, {%4}, {%0, %1};" : TWO(SUM, c) : TWO(IN, a), IN(b[0]));
#elif C_WORDS == 2 && A_WORDS == 1
    asm volatile(MMA "{%0, %1}, {%2}, {%3}, {%0, %1};" : TWO(SUM, c) : IN(a[0]), IN(b[0]));
#endif
}
#endif

// Word i of lane l of an operand lies at [i·warpSize + l]: first A, then B, then −B. `begin` has the initial sums of
// every chain. sums[((block·warps + warp)·INDEPENDENT + chain)·C_WORDS + i] has lane after lane, after one further step
// by B. `cycles` is as in instructions.cu.
extern "C" __global__ void __launch_bounds__(THREADS)
    matrix_chains(const INPUT_WORD* operands, const SUM_WORD* begin, u32 rounds, SUM_WORD* sums, u64* cycles) {
    const u32 lane = threadIdx.x % warpSize;
    INPUT_WORD a[A_WORDS], b[2][B_WORDS];
    SUM_WORD c[INDEPENDENT][C_WORDS];
#pragma unroll
    for (int i = 0; i < A_WORDS; ++i) a[i] = operands[i * warpSize + lane];
#pragma unroll
    for (int i = 0; i < 2 * B_WORDS; ++i) b[i / B_WORDS][i % B_WORDS] = operands[(A_WORDS + i) * warpSize + lane];
#pragma unroll
    for (int i = 0; i < INDEPENDENT * C_WORDS; ++i) c[i / C_WORDS][i % C_WORDS] = begin[i % C_WORDS * warpSize + lane];
    __syncthreads();
    const u64 start = gb_clock();
#pragma unroll 1
    for (u32 round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < BODY / INDEPENDENT; ++i) {
#pragma unroll
            for (int chain = 0; chain < INDEPENDENT; ++chain) step(c[chain], a, b[i % 2]);
        }
    }
    __syncthreads();
    const u64 end = gb_clock();
    sums += gb_thread() / warpSize * (INDEPENDENT * C_WORDS) * warpSize + lane;
#pragma unroll
    for (int chain = 0; chain < INDEPENDENT; ++chain) {
        step(c[chain], a, b[0]);
#pragma unroll
        for (int i = 0; i < C_WORDS; ++i) sums[(chain * C_WORDS + i) * warpSize] = c[chain][i];
    }
    if (threadIdx.x == 0) {
        cycles[2 * blockIdx.x] = end - start;
        cycles[2 * blockIdx.x + 1] = gb_unit();
    }
}
