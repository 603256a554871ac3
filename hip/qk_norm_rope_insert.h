// The query block's op: norm and rotate Q and K in place, and store K and V, for one draft layer in one launch.
//
// qkv holds, for each token, rows of D values: the heads of Q, then of K, then of V. In float32 unless it says ROUND,
// which is to bf16:
//
//     Q, K: n = ROUND(x * (1 / sqrt(mean(x^2) + eps)) * multiplier)
//           first R dims: n = ROUND(n rotated by the position's cos and sin); back to where x was
//     K, V: also to row `slot` of the pools, as the context KV writer stores them: the same functions, so the same bytes
//     Q:    where asked for, also in the fp8 pool's format, divided by its own scale
//
// A token is stored unless its slot is negative or outside the pools; Q and K are rotated in place either way, so its
// position counts (and is clamped to the table: any value is legal here). Nothing else is written.
//
// A group of D / 8 lanes owns one Q row, or one K row and the V row of the same head. The first blocks have
// the K and V rows, since they have more to do; the others have Q. A block's role is uniform, so neither pays for the
// other. One row a group, not several that share cos, sin and multipliers: a draft's blocks are a few hundred tokens
// (T = 8 a request), which is less than a wavefront a SIMD of an MI300X, so a row's latency is the op's, and a second
// row in the same lanes would add its hundred instructions to it.
//
// The budget, derived before the first compilation, in executed instructions of a wavefront of four groups (D = 128,
// R = 64, NeoX, float32 cos and sin) on gfx942, for Q:
//
//     place of the row (clamp, quotient, chunk, offsets)   24    round to bf16 (8 values, 3 each)        24
//     arguments, waits, end                                14    rotate (multiply, cross, add)           16
//     position: clamp, place in the table                  11    round and pack (8 values, 2 each + 4)   20
//     loads: position, x, 2 multipliers, 2 cos, 2 sin       8    choose what does not rotate, and pack   10
//     widen, square, sum                                   22    store, and the test before it            6
//     1 / sqrt, rounded correctly from any guess           22
//     multiply twice                                        8    total 185, so 46 a row
//
// Budgets, a row (K and V rows counted one each, as the writer's): Q 48, K and V 30 (the writer's), since the store back
// costs what the missing commit lengths save. On gfx950 rounding takes 28 less of Q's wavefront: Q 40, K and V 26 (the
// writer's). An fp8 query adds 68: widen (8), scale (8), clamp and keep NaN (8 times clamp, compare, wait, choose),
// convert (8), store and the tests before it (12); gfx942 another 24 for its negative zero: so Q 72, and 58 on gfx950. (A
// first derivation had 58 and 42 here: it left out the widening and the waits.) K and V with an fp8 pool 50 and 43 (the
// writer's).
// Vector memory instructions a wavefront: Q 8 loads and 1 store, 1 more for an fp8 query, so 10; K and V 10 loads
// (position, slot, K, V, 6 of tables) and 3 stores, so 13. None under 8 bytes. At most 64 VGPRs; no spill, LDS, barrier.
// Three round trips at most: arguments (preloaded here), then rows and positions, then cos and sin.
#pragma once
#include "head_row.h"

namespace dspark {

// The arguments of every kernel, in this order; as kernel parameters they have the layout of this struct. The first 56
// bytes are what the first loads need (kernarg preload, 14 dwords). Quotients as in ContextKVArguments.
struct QKNormRopeArguments {
  const void* qkv;             // [T, (Hq + 2 * Hkv) * D] bf16
  const int64_t* positions;    // [T]
  const float* q_multipliers;  // [D]
  uint32_t last_kv_row;        // T * Hkv - 1
  uint32_t kv_heads;
  uint32_t kv_heads_magic;
  uint32_t last_q_row;         // T * Hq - 1
  uint32_t q_heads;
  uint32_t q_heads_magic;
  uint32_t qkv_token_bytes;    // between the tokens of qkv; T of them stay below 4 GiB
  uint32_t rotary_lanes;       // R / 8; R is a multiple of 16
  const float* k_multipliers;  // [D]
  const int64_t* slots;        // [T]; without slots any [T] int64, and num_slots 0
  const void* cos_sin;         // [P, R] float32 or bf16, cos in the first R / 2
  uint64_t k_pool, v_pool;
  uint64_t q_fp8;              // [T, Hq, D] in the format of an fp8 pool, or 0
  uint32_t q_fp8_token_bytes;  // T of them stay below 4 GiB
  uint32_t unused;             // kernel parameters have no padding at their end
  uint32_t k_row_bytes, v_row_bytes;
  uint32_t cos_sin_row_bytes;
  uint32_t last_position;      // P - 1
  uint32_t num_slots;
  float eps;
  float k_inverse_scale, k_inverse_scale_rest;  // split as in ContextKVLayer
  float v_inverse_scale, v_inverse_scale_rest;
  float q_inverse_scale, q_inverse_scale_rest;
};
static_assert(sizeof(QKNormRopeArguments) == 160, "native_arguments.py has the same");

struct Query {};     // a group owns a Q row
struct KeyValue {};  // a group owns a K row and a V row

template <uint32_t D, class Rotary, class CosSin, class Pool, class Role>
DSPARK_DEVICE void finish_row(const QKNormRopeArguments& a, uint32_t row_or_past, uint32_t first_lane) {
  constexpr uint32_t GROUP = D / 8, LANES = DSPARK_LANES(GROUP);
  constexpr bool STORES = Same<Role, KeyValue>::value, FP8 = !Same<Pool, Bf16>::value;
  constexpr uint32_t POOL_BYTES = FP8 ? 1u : 2u;

  // A group past the end repeats the last row and stores nothing: no load waits for a branch on the arguments.
  const uint32_t last_row = STORES ? a.last_kv_row : a.last_q_row;
  const uint32_t row = row_or_past < last_row ? row_or_past : last_row;
  const uint32_t heads = STORES ? a.kv_heads : a.q_heads;
  const uint32_t token = settled(quotient(row, STORES ? a.kv_heads_magic : a.q_heads_magic));
  const uint32_t head = row - token * heads;

  const Words2 position_words = load<Words2>(a.positions, token * 8u);
  loads_stay_above();  // the first thing asked for: cos and sin wait for the position in it
  const uint32_t in_token = (STORES ? a.q_heads + head : head) * (D * 2u);
  uint32_t chunk[LANES], place_in_qkv[LANES];
  Words4 x[LANES], v[LANES];
  Chunk multiplier[LANES], cos[LANES], sin[LANES];
  DSPARK_EACH_LANE(i, LANES) {
    chunk[i] = chunk_of_lane<Rotary>(first_lane + i, a.rotary_lanes);
    place_in_qkv[i] = token * a.qkv_token_bytes + in_token + chunk[i] * 16u;
    x[i] = load<Words4>(a.qkv, place_in_qkv[i]);
    if (STORES) v[i] = load<Words4>(a.qkv, place_in_qkv[i] + heads * (D * 2u));
    load_values<Float32, 8>(multiplier[i], STORES ? a.k_multipliers : a.q_multipliers, chunk[i] * 32u);
  }
  const Words2 slot = STORES ? load<Words2>(a.slots, token * 8u) : Words2{};
  loads_stay_above();

  const uint32_t position = clamped_position(position_words.x, position_words.y, a.last_position);
  DSPARK_EACH_LANE(i, LANES) {
    load_cos_sin<Rotary, CosSin>(cos[i], sin[i], a.cos_sin, position * a.cos_sin_row_bytes, first_lane + i,
                                 a.rotary_lanes);
  }
  loads_stay_above();
  uint64_t k_pool = a.k_pool, v_pool = a.v_pool;
  uint32_t k_row_bytes = a.k_row_bytes, v_row_bytes = a.v_row_bytes, q_fp8_token_bytes = a.q_fp8_token_bytes;
  if (STORES) keep_uniform(k_pool), keep_uniform(v_pool), keep_uniform(k_row_bytes), keep_uniform(v_row_bytes);
  if (!STORES && FP8) keep_uniform(q_fp8_token_bytes);

  Words4 out[LANES];
  norm_and_rotate<D, Rotary>(x, multiplier, cos, sin, a.eps, a.rotary_lanes, first_lane, out);

  const bool exists = row_or_past <= last_row, stored = (slot.y == 0u) & (slot.x < a.num_slots);
  DSPARK_EACH_LANE(i, LANES) {
    if (!exists) continue;
    store(a.qkv, settled(place_in_qkv[i]), out[i]);
    if (STORES && stored) {
      const uint32_t place = (head * D + chunk[i] * 8u) * POOL_BYTES;
      store_chunk<Pool>(k_pool + (uint64_t)slot.x * k_row_bytes + place, out[i], a.k_inverse_scale,
                        a.k_inverse_scale_rest);
      store_chunk<Pool>(v_pool + (uint64_t)slot.x * v_row_bytes + place, v[i], a.v_inverse_scale,
                        a.v_inverse_scale_rest);
    }
  }
  if (STORES || !FP8 || a.q_fp8 == 0) return;
  DSPARK_EACH_LANE(i, LANES) {
    const uint32_t place = settled(token * q_fp8_token_bytes + head * D + chunk[i] * 8u);
    if (exists) store_chunk<Pool>(a.q_fp8 + place, out[i], a.q_inverse_scale, a.q_inverse_scale_rest);
  }
}

// A group's share of the grid: `group` of the block's BLOCK_THREADS * 8 / D. The first blocks have the K and V rows.
template <uint32_t D, class Rotary, class CosSin, class Pool>
DSPARK_DEVICE void finish_group(const QKNormRopeArguments& a, uint32_t block, uint32_t group, uint32_t first_lane) {
  constexpr uint32_t GROUPS = BLOCK_THREADS * 8u / D;
  const uint32_t kv_blocks = a.last_kv_row / GROUPS + 1u;
  if (block < kv_blocks) {
    finish_row<D, Rotary, CosSin, Pool, KeyValue>(a, block * GROUPS + group, first_lane);
#if defined(DSPARK_AMD)
    __builtin_amdgcn_endpgm();  // a return would lead both roles through a common end, at three instructions
#endif
  } else {
    finish_row<D, Rotary, CosSin, Pool, Query>(a, (block - kv_blocks) * GROUPS + group, first_lane);
  }
}

}  // namespace dspark
