// Every mantissa of x, with every pair of guesses that hardware within one unit in the last place may make, against the
// host's own correctly rounded sqrt and division. Prints how many differ. Two binades are all there is to sqrt.
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

namespace {
float moved(float value, int units) { return dspark::float_of(dspark::bits_of(value) + units); }
}  // namespace

int main(int count, char** arguments) {
  const uint32_t step = count > 1 ? (uint32_t)atoi(arguments[1]) : 1u;
  const float exponents[] = {1.0f, 0x1p-96f, 0x1p-20f, 0x1p60f, 0x1p126f};
  long differing = 0, tried = 0;
  for (float scale : exponents) {
    const uint32_t first = dspark::bits_of(scale), stride = scale == 1.0f ? step : step * 257u;
    for (uint32_t bits = first; bits < first + (scale == 0x1p126f ? 1u << 23 : 1u << 24); bits += stride) {
      const float x = dspark::float_of(bits), expected = 1.0f / sqrtf(x);
      for (int root_units = -1; root_units <= 1; ++root_units) {
        const float root = moved(sqrtf(x), root_units), inverse = 1.0f / root;
        for (int inverse_units = -1; inverse_units <= 1; ++inverse_units, ++tried)
          differing += dspark::inverse_root_from_guess(x, root, moved(inverse, inverse_units)) != expected;
      }
    }
  }
  printf("%ld of %ld differ\n", differing, tried);
  return differing != 0;
}
