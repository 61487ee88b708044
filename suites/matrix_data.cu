// Random operands of matrix products in every format, their exact values in double precision, and the quantised weights
// of gemv.cu. Element i is a function of (seed, i).

// An eight-bit format: a sign, EXPONENT bits of exponent with the bias BIAS, and FRACTION bits of fraction. MOST is the
// code of the largest finite number. Rounds to the nearest number, ties to even, and saturates.
template <int EXPONENT, int FRACTION, int BIAS, u32 MOST>
struct Eight {
    typedef u8 Word;
    typedef float Real;  // the type in which random numbers are computed
    static __device__ __forceinline__ float power(int exponent) { return __uint_as_float((u32)(127 + exponent) << 23); }
    static __device__ __forceinline__ Word of(float value) {
        const int own = (int)(__float_as_uint(value) >> 23 & 255u) - 127;
        const int exponent = own > 1 - BIAS ? own : 1 - BIAS;
        const u32 steps = (u32)rintf(fabsf(value) * power(FRACTION - exponent));
        const u32 code = ((u32)(exponent + BIAS - 1) << FRACTION) + steps;  // a carry increments the exponent correctly
        // No negative zero, whose code is NaN in the FP8 formats of CDNA 3.
        return (Word)((code < MOST ? code : MOST) | (value < 0 && code ? 128u : 0u));
    }
    static __device__ __forceinline__ double value(Word word) {
        const u32 exponent = (word & 127u) >> FRACTION, fraction = word & ((1u << FRACTION) - 1);
        const float size = exponent ? (fraction + (1u << FRACTION)) * power((int)exponent - BIAS - FRACTION)
                                    : fraction * power(1 - BIAS - FRACTION);
        return finite(word) ? (word & 128u ? -size : size) : nan("");
    }
    static __device__ __forceinline__ bool finite(Word word) { return (word & 127u) <= MOST; }
};

struct Half {
    typedef unsigned short Word;
    typedef float Real;
    static __device__ __forceinline__ Word of(float value) { return gb_to_half(value); }
    static __device__ __forceinline__ double value(Word word) {
        float low, high;
        gb_halves(word, low, high);
        return low;
    }
    static __device__ __forceinline__ bool finite(Word word) { return (word & 0x7c00u) != 0x7c00u; }
};

struct Brain {
    typedef unsigned short Word;
    typedef float Real;
    static __device__ __forceinline__ Word of(float value) {
        const u32 bits = __float_as_uint(value);
        return (Word)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    static __device__ __forceinline__ double value(Word word) { return __uint_as_float((u32)word << 16); }
    static __device__ __forceinline__ bool finite(Word word) { return (word & 0x7f80u) != 0x7f80u; }
};

template <class NUMBER>
struct Plain {
    typedef NUMBER Word;
    typedef NUMBER Real;
    static __device__ __forceinline__ Word of(NUMBER value) { return value; }
    static __device__ __forceinline__ double value(Word word) { return (double)word; }
    static __device__ __forceinline__ bool finite(Word word) { return word - word == 0; }
};

struct Int8 {  // a random number is one of 32 steps
    typedef signed char Word;
    typedef float Real;
    static __device__ __forceinline__ Word of(float value) {
        const float steps = rintf(32 * value);
        return (Word)(steps < -127 ? -127 : steps > 127 ? 127 : steps);
    }
    static __device__ __forceinline__ double value(Word word) { return (double)word; }
    static __device__ __forceinline__ bool finite(Word) { return true; }
};

struct Int32 {  // sums of products of int8, all far from the pattern that overwrites outputs before a check
    typedef int Word;
    typedef float Real;
    static __device__ __forceinline__ Word of(float value) { return (Word)rintf(value); }
    static __device__ __forceinline__ double value(Word word) { return (double)word; }
    static __device__ __forceinline__ bool finite(Word word) { return true; }
};

// Converts two uniform numbers in (0, 1) to a normal one (Box and Muller, Ann. Math. Stat. 29, 1958).
static __device__ __forceinline__ float normal(float u, float v) { return sqrtf(-2 * logf(u)) * cospif(2 * v); }
static __device__ __forceinline__ double normal(double u, double v) { return sqrt(-2 * log(u)) * cospi(2 * v); }

// Kinds of data: 0 normal, 1 uniform in [-1, 1), 2 all one, 3 all zero.
template <class REAL>
static __device__ __forceinline__ REAL drawn(u64 seed, u64 i, u32 kind) {
    if (kind >= 2) return kind == 2 ? 1 : 0;
    const u64 word = gb_random(seed, i);
    const REAL step = (REAL)(1.0 / 4294967296.0);
    if (kind == 1) return (REAL)(long long)word * step * step * 2;
    return normal(((REAL)(u32)(word >> 32) + (REAL)0.5) * step, ((REAL)(u32)word + (REAL)0.5) * step);
}

template <class F>
static __device__ __forceinline__ void fill(typename F::Word* out, u64 n, u64 first, u64 seed, u32 kind, float scale) {
    for (u64 i = gb_thread(); i < n; i += gb_threads())
        out[i] = F::of(scale * drawn<typename F::Real>(seed, first + i, kind));
}

// Writes to out[i, j] the element of row lines[i] (row i if `lines` is null) and column j as a double, or its absolute
// value if `absolute` is set.
template <class F>
static __device__ __forceinline__ void widen(const typename F::Word* in, const long long* lines, u64 rows, u64 cols,
                                             u64 row_stride, u64 col_stride, u32 absolute, double* out) {
    for (u64 i = gb_thread(); i < rows * cols; i += gb_threads()) {
        const u64 row = lines ? (u64)lines[i / cols] : i / cols;
        const double value = F::value(in[row * row_stride + i % cols * col_stride]);
        out[i] = absolute ? fabs(value) : value;
    }
}

template <class F>
static __device__ __forceinline__ void unusable(const typename F::Word* in, u64 n, u32* count) {
    u32 mine = 0;
    for (u64 i = gb_thread(); i < n; i += gb_threads()) mine += !F::finite(in[i]);
    if (mine) atomicAdd(count, mine);
}

#define KERNELS(NAME, ...)                                                                                         \
    extern "C" __global__ void fill_##NAME(__VA_ARGS__::Word* out, u64 n, u64 first, u64 seed, u32 kind,           \
                                           float scale) {                                                          \
        fill<__VA_ARGS__>(out, n, first, seed, kind, scale);                                                       \
    }                                                                                                              \
    extern "C" __global__ void widen_##NAME(const __VA_ARGS__::Word* in, const long long* lines, u64 rows,         \
                                            u64 cols, u64 row_stride, u64 col_stride, u32 absolute, double* out) { \
        widen<__VA_ARGS__>(in, lines, rows, cols, row_stride, col_stride, absolute, out);                          \
    }                                                                                                              \
    extern "C" __global__ void unusable_##NAME(const __VA_ARGS__::Word* in, u64 n, u32* count) {                   \
        unusable<__VA_ARGS__>(in, n, count);                                                                       \
    }

KERNELS(float64, Plain<double>)
KERNELS(float32, Plain<float>)
KERNELS(float16, Half)
KERNELS(bfloat16, Brain)
KERNELS(float8_e4m3, Eight<4, 3, 7, 0x7e>)
KERNELS(float8_e5m2, Eight<5, 2, 15, 0x7b>)
KERNELS(float4_e2m1, Eight<2, 1, 1, 0x7>)  // a code in a byte, of which `pack_nibbles` makes half a byte
KERNELS(int8, Int8)
KERNELS(int32, Int32)

// Packs codes of float4_e2m1, whose sign is bit 7, two to a byte; the first is the low half. `n` counts bytes of `out`.
extern "C" __global__ void pack_nibbles(const u8* codes, u64 n, u8* out) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) {
        const u32 low = codes[2 * i], high = codes[2 * i + 1];
        out[i] = (u8)((low & 7u) | (low >> 4 & 8u) | (high & 7u) << 4 | (high & 128u));
    }
}

// Quantised weights: q = w/scale, rounded to the nearest integer, of the normal numbers w = spread·drawn(seed, i).
// Groups of 128 weights have a scale with which the largest weight of the group becomes MOST steps. One thread per
// group.
//
// In `order` 0 the weights lie row by row, as gemv.cu reads them. In order 1, that of skinny.cu, they lie in tiles of 16 rows
// and 128 columns: lane 4·g + t of a warp reads 16 bytes at a time, first of row g and then of row g + 8, and the lanes'
// pieces lie side by side. A lane's 32 columns of a row follow each other (int8: two times 16). In order 2, that of
// skinny_wgmma.cu, they are those that the instruction takes from a lane: of each 16 columns the two from 2·t on and the two
// from 8 + 2·t on.
#define GROUP 128

// The indices of a group's scale, and of word number `word` of its elements.
static __device__ __forceinline__ u64 scale_at(u64 row, u64 block, u64 blocks, u32 order) {
    return order ? (row / 16 * blocks + block) * 16 + row % 16 : row * blocks + block;
}
template <int BITS>
static __device__ __forceinline__ u64 word_at(u64 row, u64 block, u64 blocks, u32 word, u32 order) {
    const u32 words = GROUP * BITS / 32, vector = word / 4, t = vector % 4, j = vector / 4;
    if (!order) return (row * blocks + block) * words + word;
    const u64 piece = (row / 16 * blocks + block) * (words / 8) + row % 16 / 8 * (words / 16) + j;
    return (piece * 32 + row % 8 * 4 + t) * 4 + word % 4;
}
// The column in its group of weight `k` of a group's word number `word`, and the opposite: the number of the weight of
// column `column`, in which words of EACH weights are counted through.
template <int EACH>
static __device__ __forceinline__ u32 column_of(u32 word, u32 k, u32 order) {
    if (order < 2) return word * EACH + k;
    const u32 i = (word / 16 * 4 + word % 4) * EACH + k;  // of the lane's 32 weights
    return i / 4 * 16 + i / 2 % 2 * 8 + word / 4 % 4 * 2 + i % 2;
}
template <int EACH>
static __device__ __forceinline__ u32 number_of(u32 column, u32 order) {
    if (order < 2) return column;
    const u32 i = column / 16 * 4 + column / 8 % 2 * 2 + column % 2, word = i / EACH;
    return (word / 4 * 16 + column / 2 % 4 * 4 + word % 4) * EACH + i % EACH;
}

template <int BITS>
static __device__ __forceinline__ void quantise(u32* words, unsigned short* scales, u64 groups, u64 blocks, u32 order,
                                                u64 seed, float spread) {
    const int most = BITS == 8 ? 127 : 7, bias = most + 1, each = 32 / BITS;
    for (u64 group = gb_thread(); group < groups; group += gb_threads()) {
        const u64 row = group / blocks, block = group % blocks, at = scale_at(row, block, blocks, order);
        float greatest = 0, scale, unused;
#pragma unroll 1
        for (int i = 0; i < GROUP; ++i)
            greatest = fmaxf(greatest, fabsf(spread * drawn<float>(seed, group * GROUP + i, 0)));
        scales[at] = gb_to_half(greatest / most);
        gb_halves(scales[at], scale, unused);
#pragma unroll 1
        for (int word = 0; word < GROUP / each; ++word) {
            u32 bits = 0;
#pragma unroll 1
            for (int k = 0; k < each; ++k) {
                const float w = spread * drawn<float>(seed, group * GROUP + column_of<each>(word, k, order), 0);
                const int q = (int)fminf(fmaxf(rintf(w / scale), (float)-most), (float)most) + bias;
                const int place = BITS == 8 ? k : k / 2 + 4 * (k % 2);  // gemv.cu explains this order
                bits |= (u32)q << (BITS * place);
            }
            words[word_at<BITS>(row, block, blocks, word, order)] = bits;
        }
    }
}

// Writes weight `first` + i, counted row by row, to out[i]; `first` and `n` are multiples of the group size. A thread
// has eight weights, and stores eight bytes at once.
template <int BITS, class F>
static __device__ __forceinline__ void restore(const u32* words, const unsigned short* scales, u64 first, u64 n,
                                               u64 blocks, u32 order, typename F::Word* out) {
    const int bias = BITS == 8 ? 128 : 8, each = 32 / BITS;
    for (u64 i = gb_thread(); i < n / 8; i += gb_threads()) {
        const u64 at = first / 8 + i;
        const u32 group = (u32)(at / (GROUP / 8)), row = group / (u32)blocks, block = group % (u32)blocks;
        float scale, unused;
        gb_halves(scales[scale_at(row, block, blocks, order)], scale, unused);
        union {
            typename F::Word values[8];
            uint2 pairs[sizeof(typename F::Word)];
        } found;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const u32 number = number_of<each>(at % (GROUP / 8) * 8 + e, order), k = number % each;
            const u32 word = words[word_at<BITS>(row, block, blocks, number / each, order)];
            const u32 place = BITS == 8 ? k : k / 2 + 4 * (k % 2);
            // exact in float, because a scale has 11 significant bits and a weight has 8
            found.values[e] = F::of(scale * ((int)(word >> (BITS * place) & ((1u << BITS) - 1)) - bias));
        }
        uint2* to = (uint2*)(out + i * 8);
#pragma unroll
        for (int k = 0; k < (int)sizeof(typename F::Word); ++k) to[k] = found.pairs[k];
    }
}

#define QUANTISED(BITS)                                                                                             \
    extern "C" __global__ void quantise_int##BITS(u32* words, unsigned short* scales, u64 groups, u64 blocks,        \
                                                  u32 order, u64 seed, float spread) {                              \
        quantise<BITS>(words, scales, groups, blocks, order, seed, spread);                                         \
    }                                                                                                               \
    extern "C" __global__ void restore_int##BITS(const u32* words, const unsigned short* scales, u64 first, u64 n,   \
                                                 u64 blocks, u32 order, double* out) {                              \
        restore<BITS, Plain<double> >(words, scales, first, n, blocks, order, out);                                 \
    }                                                                                                               \
    extern "C" __global__ void restore_int##BITS##_half(const u32* words, const unsigned short* scales, u64 first,   \
                                                        u64 n, u64 blocks, u32 order, unsigned short* out) {        \
        restore<BITS, Half>(words, scales, first, n, blocks, order, out);                                           \
    }

QUANTISED(8)
QUANTISED(4)

// Writes to out[i, j] the sum of the squares of `width` elements of row i from column j · width on; the last sum may
// have fewer.
extern "C" __global__ void squares(const double* in, u64 rows, u64 cols, u64 width, double* out) {
    const u64 across = (cols + width - 1) / width;
    for (u64 i = gb_thread(); i < rows * across; i += gb_threads()) {
        const u64 first = i % across * width, end = first + width < cols ? first + width : cols;
        const double* row = in + i / across * cols;
        double sum = 0;
        for (u64 k = first; k < end; ++k) sum += row[k] * row[k];
        out[i] = sum;
    }
}

// Sets marks[i] to 1 if any of the `width` words of row i no longer has the value that overwrote it before the check.
extern "C" __global__ void mark_written(const unsigned short* words, u64 n, u64 width, u32* marks) {
    for (u64 i = gb_thread(); i < n; i += gb_threads())
        if (words[i] != 0xffffu) marks[i / width] = 1;
}

// Counts the words that equal neither the word of row `first` in the same column nor the value written before the
// check.
extern "C" __global__ void differing(const unsigned short* words, u64 n, u64 width, u64 first, u32* count) {
    const unsigned short* row = words + first * width;
    u32 mine = 0;
    for (u64 i = gb_thread(); i < n; i += gb_threads()) mine += words[i] != row[i % width] && words[i] != 0xffffu;
    if (mine) atomicAdd(count, mine);
}

// Notes the cycles of each SM or CU, and the nanoseconds that all share, in the two words at its place in `out`.
extern "C" __global__ void stamp(u64* out) {
    out[2 * gb_unit()] = gb_clock();
    out[2 * gb_unit() + 1] = gb_nanoseconds();
}
