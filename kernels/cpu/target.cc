#include "kernels/cpu/target.h"

#include <array>
#include <atomic>

#include "hwy/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace nibble::kernels::cpu {
namespace {

// What LimitTargets allows.
std::atomic<CpuTarget> most_target = CpuTarget::kAvx512Vnni;

constexpr std::array kTargets = {CpuTarget::kPortable,    CpuTarget::kNeon,
                                 CpuTarget::kNeonDotprod, CpuTarget::kNeonI8mm,
                                 CpuTarget::kAvx2,        CpuTarget::kAvxVnni,
                                 CpuTarget::kAvx512Vnni};

#if defined(__x86_64__)

// One CPUID leaf (Intel SDM volume 2, CPUID); zeros where it does not exist.
struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  Leaf(uint32_t leaf, uint32_t subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

constexpr bool Bit(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// The register files that the operating system saves (XCR0).
__attribute__((target("xsave"))) uint64_t SavedState() { return _xgetbv(0); }

bool Supported(CpuTarget target) {
  const Leaf basic(1, 0), extended(7, 0), more(7, 1);
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;
  const bool fma = Bit(basic.ecx, 12), xsave = Bit(basic.ecx, 27);
  const bool f16c = Bit(basic.ecx, 29), avx2 = Bit(extended.ebx, 5);
  if (!xsave || !fma || !f16c || !avx2) return false;
  const uint64_t saved = SavedState();
  if ((saved & kYmm) != kYmm) return false;
  switch (target) {
    case CpuTarget::kPortable:
    case CpuTarget::kAvx2:
      return true;
    case CpuTarget::kNeon:
    case CpuTarget::kNeonDotprod:
    case CpuTarget::kNeonI8mm:
      return false;
    case CpuTarget::kAvxVnni:
      return Bit(more.eax, 4);
    case CpuTarget::kAvx512Vnni:
      return (saved & kZmm) == kZmm && Bit(extended.ebx, 16) &&  // F
             Bit(extended.ebx, 17) && Bit(extended.ebx, 30) &&   // DQ, BW
             Bit(extended.ebx, 31) && Bit(extended.ecx, 11);     // VL, VNNI
  }
  return false;
}

#elif defined(__aarch64__) && defined(__linux__)

bool Supported(CpuTarget target) {
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  switch (target) {
    case CpuTarget::kNeon:
      return true;
    case CpuTarget::kNeonDotprod:
      return dotprod;
    case CpuTarget::kNeonI8mm:
      return dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    default:
      return false;
  }
}

#else

bool Supported(CpuTarget) { return false; }

#endif

}  // namespace

std::string_view TargetName(CpuTarget target) {
  switch (target) {
    case CpuTarget::kPortable:
      return "portable";
    case CpuTarget::kNeon:
      return "NEON";
    case CpuTarget::kNeonDotprod:
      return "NEON dotprod";
    case CpuTarget::kNeonI8mm:
      return "NEON i8mm";
    case CpuTarget::kAvx2:
      return "AVX2";
    case CpuTarget::kAvxVnni:
      return "AVX-VNNI";
    case CpuTarget::kAvx512Vnni:
      return "AVX-512 VNNI";
  }
  return "";
}

bool TargetAvailable(CpuTarget target) {
  return target == CpuTarget::kPortable ||
         (target <= most_target && Supported(target));
}

std::optional<CpuTarget> TargetByName(std::string_view name) {
  for (const CpuTarget target : AvailableTargets()) {
    if (TargetName(target) == name) return target;
  }
  return std::nullopt;
}

void LimitTargets(CpuTarget limit) {
  most_target = limit;
#if HWY_ARCH_X86
  // Highway's better targets have lower bits.
  if (limit < CpuTarget::kAvx512Vnni) hwy::DisableTargets(HWY_AVX2 - 1);
#endif
}

CpuTarget BestTarget(CpuTarget limit) {
  CpuTarget best = CpuTarget::kPortable;
  for (const CpuTarget target : kTargets) {
    if (target <= limit && TargetAvailable(target)) best = target;
  }
  return best;
}

std::vector<CpuTarget> AvailableTargets() {
  std::vector<CpuTarget> available;
  for (const CpuTarget target : kTargets) {
    if (TargetAvailable(target)) available.push_back(target);
  }
  return available;
}

}  // namespace nibble::kernels::cpu
