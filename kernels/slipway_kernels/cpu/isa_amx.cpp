/* Products and attention in tiles; everything else is as with avx512vnni. Without AVX-512 and with SW_EMULATED_TILES it
 * is what the tests compare with. */
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define SW_PREFETCH 4096
#define SW_SPLIT_CODES /* quantized rows have their codes in bytes, too */
#pragma GCC diagnostic ignored "-Wunused-function"

namespace {

#include "vector.h"
#include "integers.h"
#include "narrow.h"
#include "tiles.h"
#include "../activation/kernel.inl"
#include "../linear/kernel.inl"
#include "../linear/narrow.inl"
#include "../linear/codes.inl"
#include "../linear/quantized.inl"
#include "../linear/unfolded.inl"
#include "../linear/product.inl"
#include "../linear/tiled.inl"
#include "../rms_norm/kernel.inl"
#include "../rope/kernel.inl"
#include "../attention/kernel.inl"
#include "../attention/tiled.inl"

}  // namespace

const Kernels& sw_kernels_amx() {
  static const Kernels kernels = [] {
    Kernels own = sw_kernels_avx512vnni();
    own.name = "amx", own.code_block_bytes = sizeof(CodeBlock), own.quantize_row = quantize_row, own.queries = SW_QUERIES;
    own.linear = linear_tiled, own.attend = attend_tiled;
    return own;
  }();
  return kernels;
}
