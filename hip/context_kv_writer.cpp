// The entry points of the context KV writer: context_kv_<D>_<rotary>_<cos/sin type>_<pool type>.
//
// On a GPU each is a kernel of BLOCK_THREADS threads a block and a grid of (ceil(rows / rows a block), layers), whose
// parameters are ContextKVArguments. On the host each is a function of the same arguments that runs the whole grid:
// `rows` is then the number of rows that the grid has lanes for, at least those of the arguments.
#include "context_kv_writer.h"

using namespace dspark;

#if defined(DSPARK_HOST)

#define DSPARK_EXPORT extern "C" __attribute__((visibility("default")))
#define CONTEXT_KV(name, D, rotary, cos_sin, pool)                                               \
  DSPARK_EXPORT void name(const ContextKVArguments* arguments, uint32_t rows, uint32_t layers) { \
    for (uint32_t layer = 0; layer < layers; ++layer)                                            \
      for (uint32_t row = 0; row < rows; ++row)                                                  \
        write_row<D, rotary, cos_sin, pool>(*arguments, row, layer, 0);                          \
  }

// The first token that is to be written and has a position or a slot outside the tables, or -1. On a CPU that is an
// error; a device clamps the one and drops the other.
DSPARK_EXPORT int64_t context_kv_check(const ContextKVArguments* arguments, uint32_t layers) {
  const ContextKVArguments& a = *arguments;
  const uint32_t tokens = (a.last_row + 1u) / a.heads;
  for (uint32_t token = 0; token < tokens; ++token) {
    const uint32_t block = token / a.columns, column = token - block * a.columns;
    const int32_t commit_length = (int32_t)load<uint32_t>(a.commit_lens, block * a.commit_stride_bytes);
    if ((int32_t)column >= commit_length) continue;
    for (uint32_t layer = 0; layer < (a.slots_layer_bytes ? layers : 1u); ++layer) {
      const int64_t slot = load<int64_t>((const char*)a.slots + (uint64_t)layer * a.slots_layer_bytes, token * 8u);
      if (slot < 0) continue;
      const int64_t position = load<int64_t>(a.positions, token * 8u);
      if (slot >= (int64_t)a.num_slots || position < 0 || position > (int64_t)a.last_position) return token;
    }
  }
  return -1;
}

#else

#define CONTEXT_KV(name, D, rotary, cos_sin, pool)                                                             \
  DSPARK_KERNEL name(const int64_t* slots, const int64_t* positions, const void* commit_lens, const void* kv,  \
                     uint32_t last_row, uint32_t heads, uint32_t heads_magic, uint32_t columns_magic,          \
                     uint32_t commit_stride_bytes, uint32_t slots_layer_bytes, uint32_t kv_token_bytes,        \
                     uint32_t columns, const float* multipliers, const void* cos_sin_table,                    \
                     const ContextKVLayer* layers, uint32_t multipliers_row_bytes, uint32_t cos_sin_row_bytes, \
                     uint32_t rotary_lanes, uint32_t last_position, uint32_t num_slots, float eps) {           \
    const ContextKVArguments arguments = {                                                                     \
        slots, positions, commit_lens, kv, last_row, heads, heads_magic, columns_magic, commit_stride_bytes,   \
        slots_layer_bytes, kv_token_bytes, columns, multipliers, cos_sin_table, layers, multipliers_row_bytes, \
        cos_sin_row_bytes, rotary_lanes, last_position, num_slots, eps};                                       \
    constexpr uint32_t group = D / 8;                                                                          \
    const uint32_t row = block_x() * (BLOCK_THREADS / group) + thread_index() / group;                         \
    write_row<D, rotary, cos_sin, pool>(arguments, row, block_y(), thread_index() % group);                    \
  }

#endif

#define CONTEXT_KV_POOLS(name, D, rotary, cos_sin)      \
  CONTEXT_KV(name##_bf16, D, rotary, cos_sin, Bf16)     \
  CONTEXT_KV(name##_e4m3fn, D, rotary, cos_sin, E4M3FN) \
  CONTEXT_KV(name##_e4m3fnuz, D, rotary, cos_sin, E4M3FNUZ)
#define CONTEXT_KV_TABLES(name, D, rotary)             \
  CONTEXT_KV_POOLS(name##_float32, D, rotary, Float32) \
  CONTEXT_KV_POOLS(name##_bf16, D, rotary, Bf16)
#define CONTEXT_KV_ROTARY(name, D)        \
  CONTEXT_KV_TABLES(name##_neox, D, Neox) \
  CONTEXT_KV_TABLES(name##_interleaved, D, Interleaved)

CONTEXT_KV_ROTARY(context_kv_64, 64)
CONTEXT_KV_ROTARY(context_kv_128, 128)
CONTEXT_KV_ROTARY(context_kv_256, 256)
