#include "bench/cpu_peaks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/checked_math.h"
#include "kernels/cpu/float_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nibble::bench {
namespace {

using kernels::cpu::CpuTarget;

constexpr int64_t kLoops = 20000;

// The sum of all words, in independent chains. kAhead: bytes from a load to
// what is asked for meanwhile, 0 to leave that to the hardware. Which of the
// two is faster differs between processors.
#if defined(__x86_64__) && defined(__GNUC__)
template <int kAhead>
__attribute__((target("avx2"))) uint64_t ReadAll(const std::byte* from,
                                                 int64_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    const auto* at = reinterpret_cast<const __m256i*>(from + i);
    if constexpr (kAhead != 0) {
      _mm_prefetch(from + i + kAhead, _MM_HINT_T0);
      _mm_prefetch(from + i + kAhead + 64, _MM_HINT_T0);
    }
    a = _mm256_add_epi64(a, _mm256_loadu_si256(at));
    b = _mm256_add_epi64(b, _mm256_loadu_si256(at + 1));
    c = _mm256_add_epi64(c, _mm256_loadu_si256(at + 2));
    d = _mm256_add_epi64(d, _mm256_loadu_si256(at + 3));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0)) +
         static_cast<uint64_t>(_mm256_extract_epi64(a, 2));
}
#else
template <int kAhead>
uint64_t ReadAll(const std::byte* from, int64_t bytes) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    uint64_t words[16];
    std::memcpy(words, from + i, sizeof(words));
    for (int j = 0; j < 16; ++j) sums[j] += words[j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}
#endif

// Eight chains of dot products in registers: enough to hide the latency of
// four or five cycles. Assembly, as compilers keep such chains in memory.
// Returns the operations done.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx512f,avx512vnni"))) double Dots512() {
  const __m512i w = _mm512_set1_epi8(3);
  __m512i a = w, b = w, c = w, d = w, e = w, f = w, g = w, h = w;
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    asm volatile(
        "vpdpbusd %8, %8, %0\n\tvpdpbusd %8, %8, %1\n\t"
        "vpdpbusd %8, %8, %2\n\tvpdpbusd %8, %8, %3\n\t"
        "vpdpbusd %8, %8, %4\n\tvpdpbusd %8, %8, %5\n\t"
        "vpdpbusd %8, %8, %6\n\tvpdpbusd %8, %8, %7"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h)
        : "v"(w));
  }
  return 8 * 128.0 * kLoops;
}

// Products of bytes, added up in 16 bits.
__attribute__((target("avx2"))) double Dots256() {
  const __m256i w = _mm256_set1_epi8(3);
  __m256i a = w, b = w, c = w, d = w, t, u, v, x;
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    asm volatile(
        "vpmaddubsw %8, %8, %4\n\tvpmaddubsw %8, %8, %5\n\t"
        "vpmaddubsw %8, %8, %6\n\tvpmaddubsw %8, %8, %7\n\t"
        "vpaddw %4, %0, %0\n\tvpaddw %5, %1, %1\n\t"
        "vpaddw %6, %2, %2\n\tvpaddw %7, %3, %3"
        : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "=&x"(t), "=&x"(u), "=&x"(v),
          "=&x"(x)
        : "x"(w));
  }
  return 4 * 64.0 * kLoops;
}

// Twelve chains: multiply-adds take four cycles, two begin in each.
__attribute__((target("avx512f"))) double Fmas512() {
  const __m512 w = _mm512_set1_ps(1e-3f);
  __m512 a = w, b = w, c = w, d = w, e = w, f = w;
  __m512 g = w, h = w, i = w, j = w, k = w, l = w;
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    asm volatile(
        "vfmadd231ps %12, %12, %0\n\tvfmadd231ps %12, %12, %1\n\t"
        "vfmadd231ps %12, %12, %2\n\tvfmadd231ps %12, %12, %3\n\t"
        "vfmadd231ps %12, %12, %4\n\tvfmadd231ps %12, %12, %5\n\t"
        "vfmadd231ps %12, %12, %6\n\tvfmadd231ps %12, %12, %7\n\t"
        "vfmadd231ps %12, %12, %8\n\tvfmadd231ps %12, %12, %9\n\t"
        "vfmadd231ps %12, %12, %10\n\tvfmadd231ps %12, %12, %11"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g),
          "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(w));
  }
  return 12 * 32.0 * kLoops;
}

__attribute__((target("avx2,fma"))) double Fmas256() {
  const __m256 w = _mm256_set1_ps(1e-3f);
  __m256 a = w, b = w, c = w, d = w, e = w, f = w;
  __m256 g = w, h = w, i = w, j = w, k = w, l = w;
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    asm volatile(
        "vfmadd231ps %12, %12, %0\n\tvfmadd231ps %12, %12, %1\n\t"
        "vfmadd231ps %12, %12, %2\n\tvfmadd231ps %12, %12, %3\n\t"
        "vfmadd231ps %12, %12, %4\n\tvfmadd231ps %12, %12, %5\n\t"
        "vfmadd231ps %12, %12, %6\n\tvfmadd231ps %12, %12, %7\n\t"
        "vfmadd231ps %12, %12, %8\n\tvfmadd231ps %12, %12, %9\n\t"
        "vfmadd231ps %12, %12, %10\n\tvfmadd231ps %12, %12, %11"
        : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g),
          "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l)
        : "x"(w));
  }
  return 12 * 16.0 * kLoops;
}

// Nothing where the machine has none.
double FmasNarrow() { return __builtin_cpu_supports("fma") ? Fmas256() : 0; }
#else
double Dots512() { return 0; }
double Dots256() { return 0; }
double Fmas512() { return 0; }
double FmasNarrow() { return 0; }
#endif

// Operations per second of `threads` threads that each call `body`, which
// returns how many it did.
double MeasureOperations(int threads, double (*body)()) {
  kernels::cpu::ThreadPool pool(threads);
  double operations = 0;
  const double seconds = BestSeconds(0.2, [&] {
    pool.ParallelFor(threads, [&](int64_t i, int) {
      const double done = body();
      if (i == 0) operations = done;
    });
  });
  return operations * threads / seconds;
}

}  // namespace

double BestSeconds(double budget_seconds, absl::FunctionRef<void()> body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  double best = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3 || seconds(Clock::now() - start) < budget_seconds;
       ++i) {
    const Clock::time_point before = Clock::now();
    body();
    best = std::min(best, seconds(Clock::now() - before));
  }
  return best;
}

MemoryReader::MemoryReader(int threads, int64_t bytes)
    : pool_(threads), parts_(DivideUp(bytes, kPartBytes)) {
  // More than the caches hold, so that each piece comes from memory.
  constexpr int64_t kLeastBytes = int64_t{256} << 20;
  const int64_t piece_bytes = parts_ * kPartBytes;
  pieces_ = DivideUp(kLeastBytes, piece_bytes);
  memory_ = kernels::HostMemory::Allocate(pieces_ * piece_bytes).value();
  std::memset(memory_.data(), 1, memory_.size_bytes());
}

void MemoryReader::Read(Ahead ahead) {
  // Tasks as large as those of a linear layer.
  constexpr int kTasksPerThread = 6;
  const int64_t parts_each =
      DivideUp<int64_t>(parts_, kTasksPerThread * pool_.threads());
  const std::byte* begin = memory_.data() + piece_ * parts_ * kPartBytes;
  piece_ = (piece_ + 1) % pieces_;
  pool_.ParallelFor(DivideUp(parts_, parts_each), [&](int64_t i, int) {
    const int64_t first = i * parts_each;
    const int64_t bytes = std::min(parts_each, parts_ - first) * kPartBytes;
    const std::byte* from = begin + first * kPartBytes;
    const uint64_t sum = ahead == Ahead::kAsked ? ReadAll<2048>(from, bytes)
                                                : ReadAll<0>(from, bytes);
    if (sum == 0) keep_ = sum;
  });
}

double MeasureRead(int threads, int64_t bytes) {
  MemoryReader reader(threads, bytes);
  const double seconds = std::min(
      BestSeconds(0.2, [&] { reader.Read(MemoryReader::Ahead::kHardware); }),
      BestSeconds(0.2, [&] { reader.Read(MemoryReader::Ahead::kAsked); }));
  return static_cast<double>(reader.bytes()) / seconds;
}

double MeasureInt8(int threads, CpuTarget target) {
  const bool wide = target == CpuTarget::kAvx512Vnni;
  return MeasureOperations(threads, wide ? Dots512 : Dots256);
}

double MeasureFma(int threads) {
  // Tiles of floats are as high as the registers that Highway took allow.
  const bool wide =
      kernels::cpu::FloatTileRows() == kernels::cpu::kMaxFloatTileRows;
  return MeasureOperations(threads, wide ? Fmas512 : FmasNarrow);
}

}  // namespace nibble::bench
