// Kernels of the interpreter's own tests, small enough to check with numpy.
#define DEVICE __attribute__((device))
#define KERNEL(threads) extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void

DEVICE unsigned thread() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE unsigned block() { return __builtin_amdgcn_workgroup_id_x(); }

// Division and square root as the compiler spells them, and an early exit.
KERNEL(64) ratio_of_roots(const float* a, const float* b, float* result, unsigned count) {
  const unsigned i = block() * 64 + thread();
  if (i < count) result[i] = __builtin_sqrtf(a[i]) / b[i];
}

// A workgroup of three waves, the last one not full: sums meet in LDS, behind barriers; a loop over the rows.
KERNEL(160) column_sums(const int* values, int* sums, unsigned rows) {
  static __attribute__((shared)) int part[160];
  for (unsigned row = block(); row < rows; row += 2) {
    part[thread()] = values[row * 160 + thread()];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    int sum = 0;
    for (unsigned i = 0; i <= thread(); ++i) sum += part[i];
    sums[row * 160 + thread()] = sum;
    __builtin_amdgcn_s_barrier();
  }
}

// A three-dimensional launch, and a table of constants that lives in the code object.
static __attribute__((constant)) const unsigned primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
KERNEL(64) places(unsigned* result) {
  const unsigned x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y();
  const unsigned group = (__builtin_amdgcn_workgroup_id_z() * 2 + __builtin_amdgcn_workgroup_id_y()) * 3 + block();
  result[group * 64 + y * 16 + x] = group * 1000000 + y * 10000 + x * 100 + primes[(x + y) & 7];
}
