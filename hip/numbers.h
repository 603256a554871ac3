// Number formats and the one function of the kernels: bfloat16, the two 8-bit floats, and 1 / sqrt.
//
// Everything rounds to nearest even and gives the same bits on every machine; a test compares them with their
// definitions over all inputs that matter.
#pragma once
#include "lanes.h"

namespace dspark {

// ---- bfloat16: the upper half of a float32 ----

// The rounded value stands in the upper half. A NaN stays one if the lower half of its payload is empty, which holds
// for every NaN that comes from bf16 data or from arithmetic; only a crafted float32 table could break it.
DSPARK_DEVICE uint32_t rounded_bits(float value) {
  const uint32_t bits = bits_of(value);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

DSPARK_DEVICE uint32_t upper_halves(uint32_t low, uint32_t high) {
#if defined(DSPARK_AMD)
  return __builtin_amdgcn_perm(high, low, 0x07060302u);
#elif defined(DSPARK_NVIDIA)
  return __byte_perm(low, high, 0x7632);
#else
  return (high & 0xffff0000u) | (low >> 16);
#endif
}

DSPARK_DEVICE Pair from_bf16(uint32_t packed) {
  return Pair{float_of(packed << 16), float_of(packed & 0xffff0000u)};
}

DSPARK_DEVICE uint32_t to_bf16(Pair values) {
#if defined(__gfx950__)
  typedef __bf16 Bf16Pair __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, __builtin_convertvector(values, Bf16Pair));  // v_cvt_pk_bf16_f32
#elif defined(DSPARK_NVIDIA)
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(values.y), "f"(values.x));
  return packed;
#else
  return upper_halves(rounded_bits(values.x), rounded_bits(values.y));
#endif
}

// Rounded to bf16, still as float32.
DSPARK_DEVICE Pair rounded_to_bf16(Pair values) {
#if defined(__gfx950__) || defined(DSPARK_NVIDIA)
  return from_bf16(to_bf16(values));
#else
  return Pair{float_of(rounded_bits(values.x) & 0xffff0000u), float_of(rounded_bits(values.y) & 0xffff0000u)};
#endif
}

// For values that are bf16 already.
DSPARK_DEVICE uint32_t to_bf16_exact(Pair values) { return upper_halves(bits_of(values.x), bits_of(values.y)); }

// ---- 8-bit floats: 4 exponent bits, 3 fraction bits ----

struct E4M3FN {  // OCP: gfx950, NVIDIA
  static constexpr int BIAS = 7;
  static constexpr float LARGEST = 448.0f;
};
struct E4M3FNUZ {  // gfx942: no infinities, no negative zero; the byte 0x80 is the NaN
  static constexpr int BIAS = 8;
  static constexpr float LARGEST = 240.0f;
};
template <class Format>
struct IsFnuz {
  static constexpr bool value = Format::BIAS == 8;
};

// The definition, in integer arithmetic: clamp, round to nearest even, NaN stays NaN. One byte.
template <class Format>
DSPARK_DEVICE uint32_t to_fp8_by_bits(float value) {
  const uint32_t sign = (bits_of(value) >> 24) & 0x80u;
  const float size = float_of(bits_of(value) & 0x7fffffffu);
  if (value != value) return IsFnuz<Format>::value ? 0x80u : sign | 0x7fu;
  const float clamped = size < Format::LARGEST ? size : Format::LARGEST;
  uint32_t code;
  if (clamped < float_of((128u - Format::BIAS) << 23)) {
    // Subnormal: adding a number whose last bit is the format's smallest step makes the hardware round there.
    const float step_aligner = float_of((128u - Format::BIAS + 20u) << 23);
    code = bits_of(clamped + step_aligner) - bits_of(step_aligner);
  } else {
    const uint32_t bits = bits_of(clamped);
    code = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - ((127u - Format::BIAS) << 3);
  }
  return IsFnuz<Format>::value && code == 0 ? 0u : sign | code;
}

#if defined(DSPARK_AMD)
// What v_cvt_pk_fp8_f32 expects: inside the finite range, since it makes NaNs of what is not; and zero in place of what
// rounds to a negative zero, the NaN of fnuz, on which descriptions of the instruction disagree.
template <class Format>
DSPARK_DEVICE float ready_for_fp8(float value) {
  const float clamped = __builtin_amdgcn_fmed3f(value, Format::LARGEST, -Format::LARGEST);
  const float ready = value != value ? value : clamped;
  if (!IsFnuz<Format>::value) return ready;
  return __builtin_fabsf(ready) <= 0x1p-11f ? 0.0f : ready;
}
#endif

// Four values, the first in the lowest byte.
template <class Format>
DSPARK_DEVICE uint32_t to_fp8(Pair first, Pair second) {
#if defined(__gfx942__) || defined(__gfx950__)
#if defined(__gfx942__)
  constexpr bool in_hardware = IsFnuz<Format>::value;
#else
  constexpr bool in_hardware = !IsFnuz<Format>::value;
#endif
  if (in_hardware) {
    const int low = __builtin_amdgcn_cvt_pk_fp8_f32(
        ready_for_fp8<Format>(first.x), ready_for_fp8<Format>(first.y), 0, false);
    return (uint32_t)__builtin_amdgcn_cvt_pk_fp8_f32(
        ready_for_fp8<Format>(second.x), ready_for_fp8<Format>(second.y), low, true);
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (!IsFnuz<Format>::value) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(first.y), "f"(first.x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(second.y), "f"(second.x));
    return low | (uint32_t)high << 16;
  }
#endif
  return to_fp8_by_bits<Format>(first.x) | to_fp8_by_bits<Format>(first.y) << 8 |
         to_fp8_by_bits<Format>(second.x) << 16 | to_fp8_by_bits<Format>(second.y) << 24;
}

// ---- 1 / sqrt, as two correctly rounded steps ----

DSPARK_DEVICE float fused(float a, float b, float c) {
#if defined(DSPARK_NVIDIA)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

DSPARK_DEVICE Pair fused(Pair a, Pair b, Pair c) {
#if defined(DSPARK_AMD)
  return __builtin_elementwise_fma(a, b, c);
#else
  return Pair{fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)};
#endif
}

// sum + sign * value for a sign of 1 or -1: one rounding, as the product is exact; fused where that is one instruction.
DSPARK_DEVICE Pair plus_signed(Pair sum, Pair value, float sign) {
#if defined(DSPARK_HOST)
  return sum + value * both(sign);
#else
  return fused(value, both(sign), sum);
#endif
}

// `root` and `inverse` are hardware guesses of sqrt(x) and 1 / root, each within one unit in the last place; both are
// rounded correctly from there, for every x from 2^-96 up. A test tries all mantissas with every guess that the
// hardware may make. Half the instructions of a compiler's sqrt and division, which also serve subnormal numbers.
DSPARK_DEVICE float inverse_root_from_guess(float x, float root, float inverse) {
  // The root is below r + 1/2 unit when r * (r + 1 unit) >= x: the residuals with both neighbours say which is nearest.
  const float below = float_of(bits_of(root) - 1u), above = float_of(bits_of(root) + 1u);
  float exact_root = fused(-below, root, x) <= 0.0f ? below : root;
  exact_root = fused(-above, root, x) > 0.0f ? above : exact_root;
  // Two Newton steps. The last factor is a unit up where the residual is positive: 1 / s of the largest mantissa s is a
  // hair above a tie, and needs it.
  const float near = fused(fused(-exact_root, inverse, 1.0f), inverse, inverse);
  const float residual = fused(-exact_root, near, 1.0f);
  return fused(residual, float_of(bits_of(near) + 1u - (bits_of(residual) >> 31)), near);
}

DSPARK_DEVICE float inverse_root(float x) {
#if defined(DSPARK_AMD)
  const float root = __builtin_amdgcn_sqrtf(x);
  const float result = inverse_root_from_guess(x, root, __builtin_amdgcn_rcpf(root));
  return __builtin_amdgcn_div_fixupf(result, root, 1.0f);  // 1 / inf = 0, 1 / NaN = NaN
#elif defined(DSPARK_NVIDIA)
  return __frcp_rn(__fsqrt_rn(x));
#else
  return 1.0f / sqrtf(x);
#endif
}

}  // namespace dspark
