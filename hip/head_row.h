// What the kernels share: a row of one head, normed, rotated and stored by a group of D / 8 lanes, eight values a lane.
//
// In float32 unless it says ROUND, which is to bf16:
//
//     n = ROUND(x * (1 / sqrt(mean(x^2) + eps)) * multiplier)
//     first R dims: n = ROUND(n rotated by the position's cos and sin)
//     into an fp8 pool: divide by the scale, clamp to the format's largest value, convert
//
// These are the rounding points of the unfused draft. NeoX rotary partners are R / 2 apart, which is R / 16 chunks of
// eight: the chunks are dealt to the lanes so that partners sit on neighbouring lanes, and trade places in one DPP operand.
#pragma once
#include "numbers.h"

namespace dspark {

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

// By multiplication: n / d = high 32 bits of (n + 1) * floor((2^32 - 1) / d), exact while (n + 1) * d <= 2^32.
DSPARK_DEVICE uint32_t quotient(uint32_t number, uint32_t magic) { return high_half_of_product(number + 1u, magic); }

// The compiler would take a product apart to make one 64-bit address of it, where an offset of 32 bits is free.
DSPARK_DEVICE uint32_t settled(uint32_t value) {
#if defined(DSPARK_AMD)
  __asm__("" : "+v"(value));
#endif
  return value;
}

DSPARK_DEVICE uint32_t clamped_position(uint32_t low, uint32_t high, uint32_t last) {
  const uint32_t outside = last & ~mask_of_bit(high, 31);
  return high == 0u ? (low < last ? low : last) : outside;
}

// The chunk of the row that a lane of the group owns.
template <class Rotary>
DSPARK_DEVICE uint32_t chunk_of_lane(uint32_t lane, uint32_t rotary_lanes) {
  const uint32_t paired = lane / 2u + (mask_of_bit(lane, 0) & rotary_lanes / 2u);
  return Same<Rotary, Neox>::value && lane < rotary_lanes ? paired : lane;
}

// The cos and sin that turn a lane's chunk: eight of each for NeoX, four interleaved.
template <class Rotary, class CosSin>
DSPARK_DEVICE void load_cos_sin(Chunk& cos, Chunk& sin, const void* table, uint32_t row_offset, uint32_t lane,
                                uint32_t rotary_lanes) {
  constexpr bool NEOX = Same<Rotary, Neox>::value;
  constexpr uint32_t PAIRS = NEOX ? 8 : 4;  // rotary pairs that a lane takes part in
  constexpr uint32_t TABLE_BYTES = Same<CosSin, Float32>::value ? 4u : 2u;
  // Lanes that do not rotate read the first chunk, to stay inside the table.
  const uint32_t place = lane < rotary_lanes ? (NEOX ? lane / 2u : lane) : 0u;
  const uint32_t offset = row_offset + place * (PAIRS * TABLE_BYTES);
  load_values<CosSin, PAIRS>(cos, table, offset);
  load_values<CosSin, PAIRS>(sin, table, offset + rotary_lanes * (4u * TABLE_BYTES));
}

// x normed and rotated, eight values a lane.
template <uint32_t D, class Rotary>
DSPARK_DEVICE void norm_and_rotate(const Words4 (&x)[DSPARK_LANES(D / 8)], const Chunk (&multiplier)[DSPARK_LANES(D / 8)],
                                   const Chunk (&cos)[DSPARK_LANES(D / 8)], const Chunk (&sin)[DSPARK_LANES(D / 8)],
                                   float eps, uint32_t rotary_lanes, uint32_t first_lane,
                                   Words4 (&out)[DSPARK_LANES(D / 8)]) {
  constexpr uint32_t GROUP = D / 8, LANES = DSPARK_LANES(GROUP);
  constexpr bool NEOX = Same<Rotary, Neox>::value;

  // The norm.
  Chunk n[LANES];
  uint32_t normed[LANES][4];
  float square_sum[LANES];
  DSPARK_EACH_LANE(i, LANES) {
    n[i] = from_bf16(x[i]);
    const Pair* pair = n[i].pair;
    const Pair squares = (pair[0] * pair[0] + pair[1] * pair[1]) + (pair[2] * pair[2] + pair[3] * pair[3]);
    square_sum[i] = squares.x + squares.y;
  }
  group_sum<GROUP>(square_sum);
  DSPARK_EACH_LANE(i, LANES) {
    const Pair inverse_rms = both(inverse_root(square_sum[i] * (1.0f / D) + eps));
    for (int j = 0; j < 4; ++j) {
      normed[i][j] = to_bf16(n[i].pair[j] * inverse_rms * multiplier[i].pair[j]);
      n[i].pair[j] = from_bf16(normed[i][j]);
    }
  }

  // The rotation: first * cos - second * sin, and second * cos + first * sin.
  uint32_t turned[LANES][4];
  float sign[LANES];
  DSPARK_EACH_LANE(i, LANES) sign[i] = (first_lane + i) % 2u == 0u ? -1.0f : 1.0f;
  for (int j = 0; j < 4; ++j) {
    float first[LANES], second[LANES];
    DSPARK_EACH_LANE(i, LANES) first[i] = n[i].pair[j].x, second[i] = n[i].pair[j].y;
    DSPARK_EACH_LANE(i, LANES) {
      if (NEOX) {
        const Pair crossed = {neighbour<GROUP>(first, i) * sin[i].pair[j].x,
                              neighbour<GROUP>(second, i) * sin[i].pair[j].y};
        turned[i][j] = to_bf16(plus_signed(n[i].pair[j] * cos[i].pair[j], crossed, sign[i]));
      } else {
        const float c = j % 2 ? cos[i].pair[j / 2].y : cos[i].pair[j / 2].x;
        const float s = j % 2 ? sin[i].pair[j / 2].y : sin[i].pair[j / 2].x;
        turned[i][j] = to_bf16(Pair{first[i] * c, second[i] * c} + Pair{second[i] * -s, first[i] * s});
      }
    }
  }
  DSPARK_EACH_LANE(i, LANES) {
    Words4 rotated = {turned[i][0], turned[i][1], turned[i][2], turned[i][3]};
    keep(rotated);  // a choice by lane, not a branch around the rotation
    const bool rotates = first_lane + i < rotary_lanes;
    out[i] = {rotates ? rotated.x : normed[i][0], rotates ? rotated.y : normed[i][1],
              rotates ? rotated.z : normed[i][2], rotates ? rotated.w : normed[i][3]};
    keep(out[i]);
  }
}

// Eight values to their place in a row of a pool.
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

}  // namespace dspark
