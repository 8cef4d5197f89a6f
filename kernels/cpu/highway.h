// Highway's settings for this project: to be included before Highway's headers.
#pragma once

// Registers of unknown size cannot be members of arrays, which our kernels
// keep their sums in; SSSE3 machines older than AVX2 take SSE4 or the baseline.
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
