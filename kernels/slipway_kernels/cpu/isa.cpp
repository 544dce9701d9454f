#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "kernels.h"

namespace {

#if defined(__x86_64__)
/* Whether there are tiles of bf16 and bytes, and the system keeps them for this process: on Linux it is asked once,
 * before a thread uses them. */
bool tiles() {
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
#endif

const Kernels& choose() {
  const char* named = getenv("SLIPWAY_CPU_ISA");
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  auto allows = [&](const char* isa) { return !named || !*named || strcmp(named, isa) == 0; };
  /* Only where they are asked for, until their speed has been measured beside the others'. */
  if (avx512bf16 && named && strcmp(named, "amx") == 0 && tiles()) return sw_kernels_amx();
  if (avx512bf16 && allows("avx512bf16")) return sw_kernels_avx512bf16();
  if (avx512 && allows("avx512")) return sw_kernels_avx512();
  if (avx2 && allows("avx2")) return sw_kernels_avx2();
#endif
  return sw_kernels_generic();
}

}  // namespace

const Kernels& sw_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

size_t sw_attention_scratch_bytes() {
  constexpr size_t chunks = SW_ATTENTION_TILE * SW_MAX_HEAD_DIM;
  constexpr size_t elements = SW_ROWS * (SW_MAX_HEAD_DIM + 2 * SW_ATTENTION_TILE + 2 * SW_PART) + 2 * chunks;
  constexpr size_t narrow = 2 * 16 * SW_MAX_HEAD_DIM; /* sixteen positions in eight bits */
  return elements * sizeof(float) + narrow + 1024;
}
