#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#include "kernels.h"

namespace {

#if defined(__x86_64__)
/* Whether there are tiles of bf16 and bytes, and the system keeps them for this process: on Linux it is asked once,
 * before a thread uses them. */
bool has_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
  constexpr unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* amx-bf16, amx-tile, amx-int8 */
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
         syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
/* Whether the processor and the system have every instruction of neonbf16. */
bool has_neonbf16() {
#if defined(__APPLE__)
  const char* names[] = {"hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_BF16", "hw.optional.arm.FEAT_I8MM"};
  for (const char* name : names) {
    int found = 0;
    size_t bytes = sizeof(found);
    if (sysctlbyname(name, &found, &bytes, nullptr, 0) != 0 || !found) return false;
  }
  return true;
#elif defined(__linux__)
  /* The bits of the kernel's interface: an older C library's headers do not name all of them. */
  constexpr unsigned long dot_product = 1ul << 20, int8_matrix = 1ul << 13, bf16 = 1ul << 14;
  unsigned long second = getauxval(AT_HWCAP2);
  return (getauxval(AT_HWCAP) & dot_product) && (second & int8_matrix) && (second & bf16);
#else
  return false;
#endif
}
#endif

const Kernels& choose() {
  const char* named = getenv("SLIPWAY_CPU_ISA");
  if (!named) named = "";
  [[maybe_unused]] auto allows = [&](const char* isa) { return !*named || strcmp(named, isa) == 0; };
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  bool avx512vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  bool avx512bf16 = avx512vnni && __builtin_cpu_supports("avx512bf16");
  if (avx512bf16 && allows("amx") && has_tiles()) return sw_kernels_amx();
  /* Intel's processors take as long for one product of pairs as for four of fp32: there it must be named, too. */
  bool pairs_are_fast = !__builtin_cpu_is("intel");
  if (avx512bf16 && allows("avx512bf16") && (*named || pairs_are_fast)) return sw_kernels_avx512bf16();
  if (avx512vnni && allows("avx512vnni")) return sw_kernels_avx512vnni();
  if (avx512 && allows("avx512")) return sw_kernels_avx512();
  if (avx2 && __builtin_cpu_supports("avxvnni") && allows("avxvnni")) return sw_kernels_avxvnni();
  if (avx2 && allows("avx2")) return sw_kernels_avx2();
#endif
#if defined(__aarch64__)
  if (allows("neonbf16") && has_neonbf16()) return sw_kernels_neonbf16();
  return sw_kernels_neon();
#else
  return sw_kernels_generic();
#endif
}

}  // namespace

const Kernels& sw_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

size_t sw_code_row_bytes(int width) {
  size_t bytes = (size_t)((width + SW_CODE_COLUMNS - 1) / SW_CODE_COLUMNS) * sw_kernels().code_block_bytes;
  return ((bytes + 63) / 64 | 1) * 64;
}

size_t sw_attention_scratch_bytes() {
  constexpr size_t chunks = SW_ATTENTION_TILE * SW_MAX_HEAD_DIM;
  constexpr size_t elements =
      SW_QUERIES * (SW_MAX_HEAD_DIM + 2 * SW_ATTENTION_TILE + 2 * SW_PART) + 2 * chunks + 2 * SW_ATTENTION_TILE;
  constexpr size_t narrow = 2 * 16 * SW_MAX_HEAD_DIM; /* sixteen positions in eight bits */
  return elements * sizeof(float) + narrow + 1024;
}
