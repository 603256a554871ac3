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
#include "numbers.h"

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
//
// Quotients are taken with a multiplication: n / d = high 32 bits of (n + 1) * floor((2^32 - 1) / d), exact while
// (n + 1) * d <= 2^32.
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

struct Neox {};         // partners i and i + R / 2
struct Interleaved {};  // partners 2i and 2i + 1
struct Bf16 {};         // what a pool, or a cos/sin table, holds
struct Float32 {};

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};

// Eight consecutive values.
struct Chunk {
  Pair pair[4];
};

DSPARK_DEVICE Chunk from_bf16(Words4 words) {
  return Chunk{{from_bf16(words.x), from_bf16(words.y), from_bf16(words.z), from_bf16(words.w)}};
}

// The first COUNT values, from a table.
template <class Element, uint32_t COUNT>
DSPARK_DEVICE void load_values(Chunk& chunk, const void* table, uint32_t byte_offset) {
  constexpr bool FLOAT32 = Same<Element, Float32>::value;
  if (FLOAT32) {
    for (uint32_t i = 0; i < COUNT / 4; ++i) {
      const Quad quad = load<Quad>(table, byte_offset, i * 16u);
      chunk.pair[2 * i] = Pair{quad.x, quad.y};
      chunk.pair[2 * i + 1] = Pair{quad.z, quad.w};
    }
  } else if (COUNT == 8) {
    chunk = from_bf16(load<Words4>(table, byte_offset));
  } else {
    const Words2 words = load<Words2>(table, byte_offset);
    chunk.pair[0] = from_bf16(words.x), chunk.pair[1] = from_bf16(words.y);
  }
}

DSPARK_DEVICE uint32_t quotient(uint32_t number, uint32_t magic) { return high_half_of_product(number + 1u, magic); }

// The five words that say where a row comes from and goes to, dealt to the lanes: one load instruction in place of three.
enum IndexWord { SLOT_LOW, SLOT_HIGH, POSITION_LOW, POSITION_HIGH, COMMIT_LENGTH };

DSPARK_DEVICE uint32_t load_index_word(const ContextKVArguments& a, uint32_t token, uint32_t block, uint32_t layer,
                                       uint32_t lane) {
  const uint64_t slots = (uint64_t)a.slots + layer * a.slots_layer_bytes;
  const uint32_t of_positions = mask_of_bit(lane, 1), of_commits = mask_of_bit(lane, 2);
  const uint64_t base = chosen(of_commits, (uint64_t)a.commit_lens, chosen(of_positions, (uint64_t)a.positions, slots));
  const uint32_t offset = chosen(of_commits, block * a.commit_stride_bytes, token * 8u + (lane & 1u) * 4u);
  return load<uint32_t>((const void*)base, offset);
}

DSPARK_DEVICE uint32_t clamped_position(uint32_t low, uint32_t high, uint32_t last) {
  const uint32_t inside = high == 0u && low < last ? low : last;
  return (int32_t)high < 0 ? 0u : inside;
}

// Eight values of K or V to their place in a pool row.
template <class Pool>
DSPARK_DEVICE void store_chunk(uint64_t address, Words4 bf16_words, float inverse_scale, float inverse_scale_rest) {
  const Pair inverse = both(inverse_scale), rest = both(inverse_scale_rest);
  const Chunk x = from_bf16(bf16_words);
  Pair q[4];
  for (int i = 0; i < 4; ++i) q[i] = fused(x.pair[i], inverse, x.pair[i] * rest);
  store(address, Words2{to_fp8<Pool>(q[0], q[1]), to_fp8<Pool>(q[2], q[3])});
}
template <>
DSPARK_DEVICE void store_chunk<Bf16>(uint64_t address, Words4 bf16_words, float, float) {
  store(address, bf16_words);
}

template <uint32_t D, class Rotary, class CosSin, class Pool>
DSPARK_DEVICE void write_row(const ContextKVArguments& a, uint32_t row_or_past, uint32_t layer, uint32_t first_lane) {
  constexpr uint32_t GROUP = D / 8, LANES = DSPARK_LANES(GROUP);
  constexpr bool NEOX = Same<Rotary, Neox>::value;
  constexpr uint32_t PAIRS = NEOX ? 8 : 4;  // rotary pairs that a lane takes part in
  constexpr uint32_t TABLE_BYTES = Same<CosSin, Float32>::value ? 4u : 2u, POOL_BYTES = Same<Pool, Bf16>::value ? 2u : 1u;

  // A group past the end repeats the last row and stores nothing: no load waits for a branch on the arguments.
  const uint32_t row = row_or_past < a.last_row ? row_or_past : a.last_row;
  const uint32_t token = quotient(row, a.heads_magic), head = row - token * a.heads;
  const uint32_t block = quotient(token, a.columns_magic);

  uint32_t index_word[LANES], chunk[LANES];
  DSPARK_EACH_LANE(i, LANES) index_word[i] = load_index_word(a, token, block, layer, first_lane + i);
  loads_stay_above();  // the first thing asked for: cos and sin wait for the position in it
  Words4 k[LANES], v[LANES];
  Chunk multiplier[LANES], cos[LANES], sin[LANES];
  DSPARK_EACH_LANE(i, LANES) {
    const uint32_t lane = first_lane + i;
    const uint32_t paired = lane / 2u + (mask_of_bit(lane, 0) & a.rotary_lanes / 2u);
    chunk[i] = NEOX && lane < a.rotary_lanes ? paired : lane;
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
  // A negative slot is a large unsigned one. No short circuit: three comparisons, and no branch.
  const bool written =
      (slot < (uint64_t)a.num_slots) & (column < commit_length) & (row_or_past <= a.last_row);

  DSPARK_EACH_LANE(i, LANES) {
    // Lanes that do not rotate read the first chunk, to stay inside the table.
    const uint32_t lane = first_lane + i;
    const uint32_t place = lane < a.rotary_lanes ? (NEOX ? lane / 2u : lane) : 0u;
    const uint32_t offset = position * a.cos_sin_row_bytes + place * (PAIRS * TABLE_BYTES);
    load_values<CosSin, PAIRS>(cos[i], a.cos_sin, offset);
    load_values<CosSin, PAIRS>(sin[i], a.cos_sin, offset + a.rotary_lanes * (4u * TABLE_BYTES));
  }
  loads_stay_above();
  keep_uniform(pools.k_pool), keep_uniform(pools.v_pool);
  keep_uniform(pools.k_row_bytes), keep_uniform(pools.v_row_bytes);

  // The norm.
  Chunk n[LANES];
  float square_sum[LANES];
  DSPARK_EACH_LANE(i, LANES) {
    n[i] = from_bf16(k[i]);
    const Pair* x = n[i].pair;
    const Pair squares = (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
    square_sum[i] = squares.x + squares.y;
  }
  group_sum<GROUP>(square_sum);
  DSPARK_EACH_LANE(i, LANES) {
    const Pair inverse_rms = both(inverse_root(square_sum[i] * (1.0f / D) + a.eps));
    for (int j = 0; j < 4; ++j)
      n[i].pair[j] = rounded_to_bf16(n[i].pair[j] * inverse_rms * multiplier[i].pair[j]);
  }

  // The rotation: first * cos - second * sin, and second * cos + first * sin.
  uint32_t turned[LANES][4];
  float sign[LANES];
  DSPARK_EACH_LANE(i, LANES) sign[i] = (first_lane + i) % 2u == 0u ? -1.0f : 1.0f;
  for (int j = 0; j < 4; ++j) {
    float x[LANES], y[LANES];
    DSPARK_EACH_LANE(i, LANES) x[i] = n[i].pair[j].x, y[i] = n[i].pair[j].y;
    DSPARK_EACH_LANE(i, LANES) {
      if (NEOX) {
        const Pair crossed = {neighbour<GROUP>(x, i) * sin[i].pair[j].x, neighbour<GROUP>(y, i) * sin[i].pair[j].y};
        turned[i][j] = to_bf16(plus_signed(n[i].pair[j] * cos[i].pair[j], crossed, sign[i]));
      } else {
        const float c = j % 2 ? cos[i].pair[j / 2].y : cos[i].pair[j / 2].x;
        const float s = j % 2 ? sin[i].pair[j / 2].y : sin[i].pair[j / 2].x;
        turned[i][j] = to_bf16(Pair{x[i] * c, y[i] * c} + Pair{y[i] * -s, x[i] * s});
      }
    }
  }

  DSPARK_EACH_LANE(i, LANES) {
    Words4 rotated = {turned[i][0], turned[i][1], turned[i][2], turned[i][3]};
    keep(rotated);  // a choice by lane, not a branch around the rotation
    const bool rotates = first_lane + i < a.rotary_lanes;
    Words4 k_out = {rotates ? rotated.x : to_bf16_exact(n[i].pair[0]), rotates ? rotated.y : to_bf16_exact(n[i].pair[1]),
                    rotates ? rotated.z : to_bf16_exact(n[i].pair[2]), rotates ? rotated.w : to_bf16_exact(n[i].pair[3])};
    keep(k_out), keep(v[i]);
    if (written) {
      const uint32_t place = (head * D + chunk[i] * 8u) * POOL_BYTES, at = (uint32_t)slot;
      store_chunk<Pool>(pools.k_pool + (uint64_t)at * pools.k_row_bytes + place, k_out, pools.k_inverse_scale,
                        pools.k_inverse_scale_rest);
      store_chunk<Pool>(pools.v_pool + (uint64_t)at * pools.v_row_bytes + place, v[i], pools.v_inverse_scale,
                        pools.v_inverse_scale_rest);
    }
  }
}

}  // namespace dspark
