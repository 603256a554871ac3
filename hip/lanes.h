// What a kernel needs from the machine, in three spellings: AMD (clang or hipcc), NVIDIA (nvcc) and plain C++.
//
// A row is owned by a *group* of neighbouring lanes, eight values a lane. On a GPU a lane is a thread and the arrays
// below have one entry; on the host one thread plays the whole group, an entry a lane, and every phase of a kernel is a
// loop over the lanes, so the group advances in lockstep as it does on the GPU. Values cross lanes only through
// `group_word`, `neighbour` and `group_sum`, so a kernel written with them is one source for all three.
#pragma once
#include <stdint.h>

#if defined(__HIP__)
#define DSPARK_AMD 1
#define DSPARK_DEVICE __attribute__((device, always_inline)) inline
#elif defined(__CUDACC__)
#define DSPARK_NVIDIA 1
#define DSPARK_DEVICE __device__ __forceinline__
#else
#define DSPARK_HOST 1
#include <math.h>
#include <string.h>
#define DSPARK_DEVICE inline
#endif

// A product and a sum are two roundings in the law: never one fused operation.
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace dspark {

constexpr uint32_t BLOCK_THREADS = 64;  // one wavefront on AMD, two warps on NVIDIA

// How many lanes of a group this thread plays.
#if defined(DSPARK_HOST)
#define DSPARK_LANES(group) (group)
#else
#define DSPARK_LANES(group) 1u
#endif
#define DSPARK_EACH_LANE(i, lanes) for (uint32_t i = 0; i < (lanes); ++i)

// ---- small vectors ----

#if defined(DSPARK_AMD)
// Vector types, so that arithmetic on a pair is one packed instruction (v_pk_mul_f32).
typedef float Pair __attribute__((ext_vector_type(2)));
typedef float Quad __attribute__((ext_vector_type(4)));
typedef uint32_t Words2 __attribute__((ext_vector_type(2)));
typedef uint32_t Words4 __attribute__((ext_vector_type(4)));
#else
struct alignas(8) Pair {
  float x, y;
};
struct alignas(16) Quad {
  float x, y, z, w;
};
struct alignas(8) Words2 {
  uint32_t x, y;
};
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};
DSPARK_DEVICE Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
DSPARK_DEVICE Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
#endif
DSPARK_DEVICE Pair both(float value) { return Pair{value, value}; }

DSPARK_DEVICE uint32_t bits_of(float value) {
#if defined(DSPARK_NVIDIA)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

DSPARK_DEVICE float float_of(uint32_t bits) {
#if defined(DSPARK_NVIDIA)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

DSPARK_DEVICE uint32_t high_half_of_product(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }

// All ones where the bit is set, and a choice by such a mask: one instruction each (v_bfe_i32, v_bfi_b32). A comparison
// and a conditional move would take a copy of every uniform operand as well: what the compiler would make of it.
DSPARK_DEVICE uint32_t mask_of_bit(uint32_t value, uint32_t bit) {
  uint32_t mask = (uint32_t)((int32_t)(value << (31u - bit)) >> 31);
#if defined(DSPARK_AMD)
  __asm__("" : "+v"(mask));
#endif
  return mask;
}
DSPARK_DEVICE uint32_t chosen(uint32_t mask, uint32_t one, uint32_t other) { return (one & mask) | (other & ~mask); }
DSPARK_DEVICE uint64_t chosen(uint32_t mask, uint64_t one, uint64_t other) {
  return chosen(mask, (uint32_t)one, (uint32_t)other) |
         (uint64_t)chosen(mask, (uint32_t)(one >> 32), (uint32_t)(other >> 32)) << 32;
}

// ---- memory ----
// Address spaces are named on AMD: a pointer that came out of a table would otherwise be a slower, generic "flat" one.

#if defined(DSPARK_AMD)
#define DSPARK_GLOBAL __attribute__((address_space(1)))
#define DSPARK_CONSTANT __attribute__((address_space(4)))
#else
#define DSPARK_GLOBAL
#define DSPARK_CONSTANT
#endif

// `further` is a constant, which becomes part of the instruction.
template <class T>
DSPARK_DEVICE T load(const void* base, uint32_t byte_offset, uint32_t further = 0) {
#if defined(DSPARK_HOST)
  T value;  // rows of any alignment are legal on the host
  memcpy(&value, (const char*)base + byte_offset + further, sizeof value);
  return value;
#else
  return *(const DSPARK_GLOBAL T*)((const DSPARK_GLOBAL char*)base + byte_offset + further);
#endif
}

// The same for every lane of a wavefront: a scalar load on AMD.
template <class T>
DSPARK_DEVICE T load_uniform(const T* table, uint32_t index) {
#if defined(DSPARK_AMD)
  return *(const DSPARK_CONSTANT T*)((const DSPARK_CONSTANT char*)table + index * (uint32_t)sizeof(T));
#else
  return table[index];
#endif
}

template <class T>
DSPARK_DEVICE void store(uint64_t address, T value) {
#if defined(DSPARK_HOST)
  memcpy((void*)address, &value, sizeof value);
#else
#if defined(DSPARK_NVIDIA)
  __builtin_assume(__isGlobal((const void*)address));
#endif
  *(DSPARK_GLOBAL T*)address = value;
#endif
}

// The same place as a `load` of `base` and `byte_offset`.
template <class T>
DSPARK_DEVICE void store(const void* base, uint32_t byte_offset, T value) {
#if defined(DSPARK_HOST)
  memcpy((char*)base + byte_offset, &value, sizeof value);
#else
  *(DSPARK_GLOBAL T*)((DSPARK_GLOBAL char*)base + byte_offset) = value;
#endif
}

// Compilers sink a load to its first use, here behind the test of whether the row is written, and latencies add up.
// `loads_stay_above` lets nothing move across it; `keep` makes a value ready where it stands.
DSPARK_DEVICE void loads_stay_above() {
#if defined(DSPARK_AMD)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

DSPARK_DEVICE void keep(Words4& value) {
#if defined(DSPARK_AMD)
  __asm__ volatile("" : "+v"(value));
#elif defined(DSPARK_NVIDIA)
  asm volatile("" : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w));
#else
  (void)value;
#endif
}

template <class T>
DSPARK_DEVICE void keep_uniform(T& value) {
#if defined(DSPARK_AMD)
  __asm__ volatile("" : "+s"(value));
#else
  (void)value;
#endif
}

// ---- lanes of a group ----

#if defined(DSPARK_AMD)
// DPP reads another lane of the same 16 as part of the instruction.
enum Dpp {
  LANE_XOR_1 = 0xB1,   // quad_perm [1, 0, 3, 2]
  LANE_XOR_2 = 0x4E,   // quad_perm [2, 3, 0, 1]
  HALF_MIRROR = 0x141,  // 7 - lane: the other quad of eight
  MIRROR = 0x140,       // 15 - lane: the other eight of sixteen
  BROADCAST = 0x150,    // row_newbcast: lane 0 of 16, + n for lane n
};
template <int CONTROL>
DSPARK_DEVICE uint32_t dpp(uint32_t value) {
  return (uint32_t)__builtin_amdgcn_update_dpp(0, (int)value, CONTROL, 0xf, 0xf, true);
}
template <int CONTROL>
DSPARK_DEVICE float dpp(float value) {
  return float_of(dpp<CONTROL>(bits_of(value)));
}
#endif

// Lane `LANE` (below 8) of the group, for every lane of it. Every run of eight lanes must hold the same eight values.
template <uint32_t GROUP, int LANE>
DSPARK_DEVICE uint32_t group_word(const uint32_t (&word)[DSPARK_LANES(GROUP)]) {
#if defined(DSPARK_AMD)
  if (GROUP >= 16) return dpp<BROADCAST + LANE>(word[0]);
  // Two groups share the sixteen lanes: each half takes from its own.
  const int low = __builtin_amdgcn_update_dpp(0, (int)word[0], BROADCAST + LANE, 0xf, 0x3, false);
  return (uint32_t)__builtin_amdgcn_update_dpp(low, (int)word[0], BROADCAST + LANE + 8, 0xf, 0xc, false);
#elif defined(DSPARK_NVIDIA)
  return __shfl_sync(0xffffffffu, word[0], LANE, 8);
#else
  return word[LANE];
#endif
}

// The value of the lane beside (2i and 2i + 1 are neighbours).
template <uint32_t GROUP>
DSPARK_DEVICE float neighbour(const float (&value)[DSPARK_LANES(GROUP)], uint32_t lane) {
#if defined(DSPARK_AMD)
  return dpp<LANE_XOR_1>(value[lane]);
#elif defined(DSPARK_NVIDIA)
  return __shfl_xor_sync(0xffffffffu, value[lane], 1);
#else
  return value[lane ^ 1];
#endif
}

// The sum over the group, in every lane: pairs, then pairs of pairs. The same order, so the same bits, everywhere.
template <uint32_t GROUP>
DSPARK_DEVICE void group_sum(float (&value)[DSPARK_LANES(GROUP)]) {
#if defined(DSPARK_AMD)
  value[0] += dpp<LANE_XOR_1>(value[0]);
  value[0] += dpp<LANE_XOR_2>(value[0]);
  value[0] += dpp<HALF_MIRROR>(value[0]);
  if (GROUP >= 16) value[0] += dpp<MIRROR>(value[0]);
  // swizzle "xor 16": crosses sixteens through the LDS crossbar, without using LDS memory
  if (GROUP == 32) value[0] += float_of((uint32_t)__builtin_amdgcn_ds_swizzle((int)bits_of(value[0]), 0x401F));
#elif defined(DSPARK_NVIDIA)
#pragma unroll
  for (uint32_t distance = 1; distance < GROUP; distance *= 2)
    value[0] += __shfl_xor_sync(0xffffffffu, value[0], distance);
#else
  for (uint32_t distance = 1; distance < GROUP; distance *= 2) {
    float other[GROUP];
    for (uint32_t lane = 0; lane < GROUP; ++lane) other[lane] = value[lane ^ distance];
    for (uint32_t lane = 0; lane < GROUP; ++lane) value[lane] += other[lane];
  }
#endif
}

// ---- where this thread is ----

#if defined(DSPARK_AMD)
DSPARK_DEVICE uint32_t thread_index() { return __builtin_amdgcn_workitem_id_x(); }
DSPARK_DEVICE uint32_t block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DSPARK_DEVICE uint32_t block_y() { return __builtin_amdgcn_workgroup_id_y(); }
#define DSPARK_KERNEL \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64))) void
#elif defined(DSPARK_NVIDIA)
DSPARK_DEVICE uint32_t thread_index() { return threadIdx.x; }
DSPARK_DEVICE uint32_t block_x() { return blockIdx.x; }
DSPARK_DEVICE uint32_t block_y() { return blockIdx.y; }
#define DSPARK_KERNEL extern "C" __global__ void __launch_bounds__(64)
#endif

}  // namespace dspark
