/* Products in emulated tiles, as the library has them in those of AMX. */
#define SW_EMULATED_TILES
#include "isa_amx.cpp"

#include <vector>

/* Never called: the emulation stands for what goes through tiles. */
const Kernels& sw_kernels_avx512vnni() { abort(); }

/* out[rows][n] = x[rows][k] · wᵀ, x in bf16 for weights of bf16, else in fp32. */
extern "C" void tiled_product(const sw_weight* w, const void* x, int rows, float* out) {
  Product p = {};
  std::vector<CodeBlock> codes;
  p.x = x, p.x_stride = w->k, p.w = *w, p.n = w->n, p.out = out, p.out_stride = w->n, p.out_dtype = SW_FP32;
  if (sw_is_integers(w->dtype)) {
    size_t blocks = (w->k + SW_CODE_COLUMNS - 1) / SW_CODE_COLUMNS;
    codes.resize(rows * blocks);
    for (int i = 0; i < rows; ++i) quantize_row((const float*)x + (size_t)i * w->k, SW_FP32, w->k, &codes[i * blocks]);
    p.x = codes.data(), p.x_stride = blocks * sizeof(CodeBlock);
  }
  linear_tiled(p, 0, rows, 0, (w->n + 31) / 32);
}
