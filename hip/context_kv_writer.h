// The context KV writer: norm, rotate and scatter K, and scatter V, for every layer of a draft in one launch.
//
// For each row (one head of one token) of each layer, in float32 unless it says ROUND, which is to bf16:
//
//     K: n = ROUND(k * (1 / sqrt(mean(k^2) + eps)) * multiplier)
//        first R dims: n = ROUND(n rotated by the position's cos and sin)
//        fp8 pool only: divide by the layer's scale, clamp to the format's largest value, convert
//     V: copied; fp8 pool: the same fp8 step with its own scale
//
// These are the rounding points of the unfused draft. A row is skipped when its slot is negative or outside the pool,
// and when its column is not below its block's commit length: skipped rows load and compute like any other (a position
// is clamped to the table, so any value is legal) and only their stores are left out. Nothing else is written.
//
// A row of D values is a group of D / 8 lanes: 16-byte loads and stores, one K load and one V load a lane. NeoX rotary
// partners are R / 2 apart, which is R / 16 chunks of eight: the chunks are dealt to the lanes so that partners sit on
// neighbouring lanes, and trade places in one DPP operand. What a row needs from memory, it asks for in three round
// trips: arguments; then K, V, multipliers and the index words; then cos and sin, whose place the position decides.
#pragma once
#include "head_row.h"

namespace dspark {

// Pools of one layer. Strides are between slots. Scales are split so that x / scale = x * inverse + x * inverse_rest
// rounds like the division, wherever rounding to fp8 could tell them apart. 40 bytes, an entry a layer.
struct ContextKVLayer {
  uint64_t k_pool, v_pool;
  uint32_t k_row_bytes, v_row_bytes;
  float k_inverse_scale, k_inverse_scale_rest;
  float v_inverse_scale, v_inverse_scale_rest;
};

// The arguments of every kernel, in this order; as kernel parameters they have the layout of this struct. The first 56
// bytes are what the first loads need: on AMD they arrive in registers (kernarg preload, 14 dwords).
struct ContextKVArguments {
  const int64_t* slots;      // [T], or [L, T]
  const int64_t* positions;  // [T]
  const void* commit_lens;   // [B] int32 or int64; without commit lengths: one positive number, stride 0, one column
  const void* kv;            // [T, L, 2, H, D] bf16
  uint32_t last_row;           // T * H - 1
  uint32_t heads;              // H
  uint32_t heads_magic;        // floor((2^32 - 1) / H)
  uint32_t columns_magic;      // floor((2^32 - 1) / columns)
  uint32_t commit_stride_bytes;  // 4, 8, or 0
  uint32_t slots_layer_bytes;  // between the layers of slots; 0: all layers share them
  uint32_t kv_token_bytes;     // between the tokens of kv; T of them stay below 4 GiB
  uint32_t columns;            // W = T / B
  const float* multipliers;    // [L, D]
  const void* cos_sin;         // [P, R] float32 or bf16, cos in the first R / 2
  const ContextKVLayer* layers;  // [L]
  uint32_t multipliers_row_bytes;
  uint32_t cos_sin_row_bytes;
  uint32_t rotary_lanes;       // R / 8; R is a multiple of 16
  uint32_t last_position;      // P - 1
  uint32_t num_slots;
  float eps;
};
static_assert(sizeof(ContextKVArguments) == 112 && sizeof(ContextKVLayer) == 40, "native_arguments.py has the same");

// The five words that place a row, dealt to the lanes: one load instruction in place of three.
enum IndexWord { SLOT_LOW, SLOT_HIGH, POSITION_LOW, POSITION_HIGH, COMMIT_LENGTH };

DSPARK_DEVICE uint32_t load_index_word(const ContextKVArguments& a, uint32_t token, uint32_t block, uint32_t layer,
                                       uint32_t lane) {
  const uint64_t slots = (uint64_t)a.slots + layer * a.slots_layer_bytes;
  const uint32_t of_positions = mask_of_bit(lane, 1), of_commits = mask_of_bit(lane, 2);
  const uint64_t base = chosen(of_commits, (uint64_t)a.commit_lens, chosen(of_positions, (uint64_t)a.positions, slots));
  const uint32_t offset = chosen(of_commits, block * a.commit_stride_bytes, token * 8u + (lane & 1u) * 4u);
  return load<uint32_t>((const void*)base, offset);
}

template <uint32_t D, class Rotary, class CosSin, class Pool>
DSPARK_DEVICE void write_row(const ContextKVArguments& a, uint32_t row_or_past, uint32_t layer, uint32_t first_lane) {
  constexpr uint32_t GROUP = D / 8, LANES = DSPARK_LANES(GROUP);
  constexpr uint32_t POOL_BYTES = Same<Pool, Bf16>::value ? 2u : 1u;

  // A group past the end repeats the last row, the same bytes to the same place: no test, and no load behind a branch.
  const uint32_t row = row_or_past < a.last_row ? row_or_past : a.last_row;
  const uint32_t token = quotient(row, a.heads_magic), head = row - token * a.heads;
  const uint32_t block = quotient(token, a.columns_magic);

  uint32_t index_word[LANES], chunk[LANES];
  DSPARK_EACH_LANE(i, LANES) index_word[i] = load_index_word(a, token, block, layer, first_lane + i);
  loads_stay_above();  // the first thing asked for: cos and sin wait for the position in it
  Words4 k[LANES], v[LANES];
  Chunk multiplier[LANES], cos[LANES], sin[LANES];
  DSPARK_EACH_LANE(i, LANES) {
    chunk[i] = chunk_of_lane<Rotary>(first_lane + i, a.rotary_lanes);
    const uint32_t kv_offset = token * a.kv_token_bytes + (layer * 2u * a.heads + head) * (D * 2u) + chunk[i] * 16u;
    k[i] = load<Words4>(a.kv, kv_offset);
    v[i] = load<Words4>(a.kv, kv_offset + a.heads * (D * 2u));
    load_values<Float32, 8>(multiplier[i], a.multipliers, layer * a.multipliers_row_bytes + chunk[i] * 32u);
  }
  ContextKVLayer pools = load_uniform(a.layers, layer);
  loads_stay_above();

  const uint64_t slot = group_word<GROUP, SLOT_LOW>(index_word) |
                        (uint64_t)group_word<GROUP, SLOT_HIGH>(index_word) << 32;
  const uint32_t position =
      clamped_position(group_word<GROUP, POSITION_LOW>(index_word), group_word<GROUP, POSITION_HIGH>(index_word),
                       a.last_position);
  const int32_t commit_length = (int32_t)group_word<GROUP, COMMIT_LENGTH>(index_word);
  const int32_t column = (int32_t)(token - block * a.columns);
  // A negative slot is a large unsigned one. No short circuit: two comparisons, and no branch.
  const bool written = (slot < (uint64_t)a.num_slots) & (column < commit_length);

  DSPARK_EACH_LANE(i, LANES) {
    load_cos_sin<Rotary, CosSin>(cos[i], sin[i], a.cos_sin, position * a.cos_sin_row_bytes, first_lane + i,
                                 a.rotary_lanes);
  }
  loads_stay_above();
  keep_uniform(pools.k_pool), keep_uniform(pools.v_pool);
  keep_uniform(pools.k_row_bytes), keep_uniform(pools.v_row_bytes);

  Words4 k_out[LANES];
  norm_and_rotate<D, Rotary>(k, multiplier, cos, sin, a.eps, a.rotary_lanes, first_lane, k_out);
  DSPARK_EACH_LANE(i, LANES) {
    keep(v[i]);
    if (written) {
      const uint32_t place = (head * D + chunk[i] * 8u) * POOL_BYTES, at = (uint32_t)slot;
      store_chunk<Pool>(pools.k_pool + (uint64_t)at * pools.k_row_bytes + place, k_out[i], pools.k_inverse_scale,
                        pools.k_inverse_scale_rest);
      store_chunk<Pool>(pools.v_pool + (uint64_t)at * pools.v_row_bytes + place, v[i], pools.v_inverse_scale,
                        pools.v_inverse_scale_rest);
    }
  }
}

}  // namespace dspark
