/* The kernels of one instruction set. SW_ISA names it; the compiler's flags choose the vectors. Only C
 * headers are included, and all code is in an anonymous namespace: a template shared with another file could
 * be linked in its wider version and stop an older processor. */
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Bytes ahead of the weights in use. On Zen 4 any distance from 512 to 16,384 reads equally fast, on Zen 5 packed
 * integers 1 to 5 % faster than with 2,048. */
#define SW_PREFETCH 4096

namespace {

#include "vector.h"
#include "integers.h"
#include "narrow.h"
#include "transpose.h"
#include "../activation/kernel.inl"
#include "../linear/kernel.inl"
#include "../activation/row.inl"
#include "../linear/narrow.inl"
#include "../linear/codes.inl"
#include "../linear/quantized.inl"
#include "../linear/unfolded.inl"
#include "../linear/product.inl"
#include "../linear/blocks.inl"
#include "../rms_norm/kernel.inl"
#include "../layer_norm/kernel.inl"
#include "../rope/kernel.inl"
#include "../attention/kernel.inl"
#include "../moe/kernel.inl"
#include "../embedding/kernel.inl"
#include "../quantize/kernel.inl"
#include "../lora/kernel.inl"

}  // namespace

#define SW_TEXT(name) #name
#define SW_STRING(name) SW_TEXT(name)
#define SW_JOIN(a, b) a##b
#define SW_GETTER(isa) SW_JOIN(sw_kernels_, isa)

const Kernels& SW_GETTER(SW_ISA)() {
  static constexpr Kernels kernels = {
      SW_STRING(SW_ISA), sizeof(CodeBlock), SW_ROWS,
      linear,       gate_row,   activate_row, rms_norm, layer_norm, rotate_query, store_key, store_value,
      attend,       merge_parts, route,       combine,  add_gated,  pack_rows,    convert_rows, round_rows,
      pack_codes,   pack_blocks, read_row,    quantize_row, shrink, expand,       cap_row,
  };
  return kernels;
}
