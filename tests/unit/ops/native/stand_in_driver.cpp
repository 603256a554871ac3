// A GPU driver's module API that runs kernels on the host, to prove what the package asks of a driver.
//
// A "code object" is the path of the kernels compiled for the host. A launch checks the geometry and the packed
// arguments, then runs the host's entry point over every row that the grid has lanes for: a grid too small leaves rows
// unwritten, one too large goes past the end as it would on a GPU. Device memory is the process's own.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr int INVALID = 1, NOT_FOUND = 500;

struct Op {
  const char* prefix;  // of its kernels' names; the head dimension follows
  uint64_t argument_bytes;
};
constexpr Op OPS[] = {{"context_kv_", 112}, {"qk_norm_rope_", 160}};
constexpr uint64_t MOST_ARGUMENT_BYTES = 160;

struct Launch {
  char kernel[64];
  uint32_t grid_x, grid_y, block_x;
  void* stream;
};
Launch last;

struct Function {
  void (*run)(const void*, uint32_t, uint32_t);
  uint32_t rows_a_block;
  uint64_t argument_bytes;
  char name[64];
};

int load(void** module, const void* image) {
  *module = dlopen((const char*)image, RTLD_NOW | RTLD_LOCAL);
  return *module ? 0 : INVALID;
}

int get(void** function, void* module, const char* name) {
  void* symbol = dlsym(module, name);
  const Op* op = nullptr;
  for (const Op& one : OPS)
    if (!strncmp(name, one.prefix, strlen(one.prefix))) op = &one;
  if (!symbol || !op) return NOT_FOUND;
  Function* found = (Function*)calloc(1, sizeof(Function));
  found->run = (void (*)(const void*, uint32_t, uint32_t))symbol;
  found->rows_a_block = 64u * 8u / (uint32_t)atoi(name + strlen(op->prefix));
  found->argument_bytes = op->argument_bytes;
  strncpy(found->name, name, sizeof found->name - 1);
  *function = found;
  return 0;
}

int launch(const Function* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t shared,
           void* stream, void** parameters, void** options, void* end) {
  if (!options || parameters || shared || grid[2] != 1 || block[0] != 64 || block[1] != 1 || block[2] != 1) return INVALID;
  if (options[0] != (void*)1 || options[2] != (void*)2 || options[4] != end) return INVALID;
  if (*(const uint64_t*)options[3] != function->argument_bytes || !grid[0] || !grid[1]) return INVALID;
  // A driver copies the arguments during the call.
  alignas(8) char arguments[MOST_ARGUMENT_BYTES];
  memcpy(arguments, options[1], function->argument_bytes);
  last.grid_x = grid[0], last.grid_y = grid[1], last.block_x = block[0], last.stream = stream;
  memcpy(last.kernel, function->name, sizeof last.kernel);
  function->run(arguments, grid[0] * function->rows_a_block, grid[1]);
  return 0;
}

}  // namespace

extern "C" {
const Launch* stand_in_last_launch() { return &last; }

int hipModuleLoadData(void** module, const void* image) { return load(module, image); }
int hipModuleGetFunction(void** function, void* module, const char* name) { return get(function, module, name); }
int hipModuleLaunchKernel(void* function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                          uint32_t shared, void* stream, void** parameters, void** options) {
  return launch((Function*)function, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters, options, (void*)3);
}

int cuModuleLoadData(void** module, const void* image) { return load(module, image); }
int cuModuleGetFunction(void** function, void* module, const char* name) { return get(function, module, name); }
int cuLaunchKernel(void* function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                   uint32_t shared, void* stream, void** parameters, void** options) {
  return launch((Function*)function, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters, options, (void*)0);
}
}
