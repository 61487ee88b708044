// In place of HIP's: bfloat16 as its upper half of a float, rounded to the nearest.
#pragma once
struct __hip_bfloat16 {
    unsigned short bits;
    __hip_bfloat16() = default;
    __hip_bfloat16(float value) {
        const u32 word = __float_as_uint(value);
        bits = (unsigned short)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
    }
    operator float() const { return __uint_as_float((u32)bits << 16); }
};
static inline unsigned short __bfloat16_as_ushort(__hip_bfloat16 value) { return value.bits; }
static inline __hip_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    __hip_bfloat16 found;
    found.bits = bits;
    return found;
}
