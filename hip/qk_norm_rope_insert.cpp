// The entry points of the query block's op: qk_norm_rope_<D>_<rotary>_<cos/sin type>_<pool type>.
//
// On a GPU each is a kernel of BLOCK_THREADS threads a block whose parameters are QKNormRopeArguments; the grid is
// ceil(T * Hkv / groups) + ceil(T * Hq / groups) with BLOCK_THREADS * 8 / D groups a block. On the host each is a function
// of the same arguments that runs the whole grid: `groups` is then the number of groups in it. The last parameter is the
// grid's second size, 1.
#include "qk_norm_rope_insert.h"

using namespace dspark;

#if defined(DSPARK_HOST)

#define DSPARK_EXPORT extern "C" __attribute__((visibility("default")))
#define QK_NORM_ROPE(name, D, rotary, cos_sin, pool)                                                    \
  DSPARK_EXPORT void name(const QKNormRopeArguments* arguments, uint32_t groups, uint32_t) {            \
    for (uint32_t group = 0; group < groups; ++group)                                                   \
      finish_group<D, rotary, cos_sin, pool>(*arguments, group * D / 512, group % (512 / D), 0);        \
  }

// The first token whose position is outside the table, or whose slot is beyond the pools, or -1. On a CPU that is an
// error; a device clamps the one and drops the other. Without slots, `check_slots` is 0.
DSPARK_EXPORT int64_t qk_norm_rope_check(const QKNormRopeArguments* arguments, uint32_t check_slots) {
  const QKNormRopeArguments& a = *arguments;
  const uint32_t tokens = (a.last_q_row + 1u) / a.q_heads;
  for (uint32_t token = 0; token < tokens; ++token) {
    const int64_t position = load<int64_t>(a.positions, token * 8u);
    if (position < 0 || position > (int64_t)a.last_position) return token;
    if (check_slots && load<int64_t>(a.slots, token * 8u) >= (int64_t)a.num_slots) return token;
  }
  return -1;
}

#else

#define QK_NORM_ROPE(name, D, rotary, cos_sin, pool)                                                                  \
  DSPARK_KERNEL name(                                                                                                 \
      const void* qkv, const int64_t* positions, const float* q_multipliers, uint32_t last_kv_row, uint32_t kv_heads, \
      uint32_t kv_heads_magic, uint32_t last_q_row, uint32_t q_heads, uint32_t q_heads_magic,                         \
      uint32_t qkv_token_bytes, uint32_t rotary_lanes, const float* k_multipliers, const int64_t* slots,              \
      const void* cos_sin_table, uint64_t k_pool, uint64_t v_pool, uint64_t q_fp8, uint32_t q_fp8_token_bytes,        \
      uint32_t unused, uint32_t k_row_bytes, uint32_t v_row_bytes, uint32_t cos_sin_row_bytes, uint32_t last_position,\
      uint32_t num_slots, float eps, float k_inverse_scale, float k_inverse_scale_rest, float v_inverse_scale,        \
      float v_inverse_scale_rest, float q_inverse_scale, float q_inverse_scale_rest) {                                \
    const QKNormRopeArguments arguments = {                                                                           \
        qkv, positions, q_multipliers, last_kv_row, kv_heads, kv_heads_magic, last_q_row, q_heads, q_heads_magic,     \
        qkv_token_bytes, rotary_lanes, k_multipliers, slots, cos_sin_table, k_pool, v_pool, q_fp8, q_fp8_token_bytes, \
        unused, k_row_bytes, v_row_bytes, cos_sin_row_bytes, last_position, num_slots, eps, k_inverse_scale,          \
        k_inverse_scale_rest, v_inverse_scale, v_inverse_scale_rest, q_inverse_scale, q_inverse_scale_rest};          \
    const uint32_t thread = thread_index();                                                                           \
    finish_group<D, rotary, cos_sin, pool>(arguments, block_x(), thread / (D / 8), thread % (D / 8));                 \
  }

#endif

#define QK_NORM_ROPE_POOLS(name, D, rotary, cos_sin)           \
  QK_NORM_ROPE(name##_bf16, D, rotary, cos_sin, Bf16)          \
  QK_NORM_ROPE(name##_e4m3fn, D, rotary, cos_sin, E4M3FN)      \
  QK_NORM_ROPE(name##_e4m3fnuz, D, rotary, cos_sin, E4M3FNUZ)
#define QK_NORM_ROPE_TABLES(name, D, rotary)                   \
  QK_NORM_ROPE_POOLS(name##_float32, D, rotary, Float32)       \
  QK_NORM_ROPE_POOLS(name##_bf16, D, rotary, Bf16)
#define QK_NORM_ROPE_ROTARY(name, D)                           \
  QK_NORM_ROPE_TABLES(name##_neox, D, Neox)                    \
  QK_NORM_ROPE_TABLES(name##_interleaved, D, Interleaved)

QK_NORM_ROPE_ROTARY(qk_norm_rope_64, 64)
QK_NORM_ROPE_ROTARY(qk_norm_rope_128, 128)
QK_NORM_ROPE_ROTARY(qk_norm_rope_256, 256)
