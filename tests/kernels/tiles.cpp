/* Products in emulated tiles, as the library has them in those of AMX. */
#define SW_EMULATED_TILES
#include "isa_amx.cpp"

#include <vector>

/* Never called: the tests ask only for what goes through tiles. */
const Kernels& sw_kernels_avx512vnni() { abort(); }

struct Memory {
  explicit Memory(size_t bytes) : at((char*)aligned_alloc(64, (bytes + 63) / 64 * 64)) {}
  ~Memory() { free(at); }
  char* at;
};

/* Attention in emulated tiles: q and out are [rows][heads][dim], keys and values [positions][kv_heads][dim]. The rows
 * are the last positions. One call of the kernel computes `together` queries of a key head. */
extern "C" void tiled_attention(const bf16* q, const float* keys, const float* values, int heads, int kv_heads, int dim,
                                int block, int positions, int rows, int window, int together, bf16* out) {
  int pages = (positions + block - 1) / block, queries = rows * (heads / kv_heads);
  size_t bytes = sw_kv_bytes(kv_heads, dim, block, SW_BF16);
  Memory pool(pages * bytes), scratch(sizeof(AttentionScratch<ByTiles>));
  memset(pool.at, 0xff, pages * bytes); /* what lies behind the last position is no number */
  std::vector<int32_t> table(pages);
  for (int i = 0; i < pages; ++i) table[i] = pages - 1 - i;
  Attention a = {};
  a.pages = {pool.at, bytes, block, kv_heads, dim, SW_BF16, SW_BF16, 1.0f, 1.0f};
  a.heads = heads, a.window = window, a.scale = 0.125f;
  a.q = q, a.out = out, a.q_stride = a.out_stride = heads * dim;
  for (int i = 0; i < positions; ++i)
    for (int head = 0; head < kv_heads; ++head) {
      size_t at = (size_t)(i * kv_heads + head) * dim;
      store_key(a.pages, table.data(), i, head, keys + at, nullptr, 0, nullptr, 0, 0);
      store_value(a.pages, table.data(), i, head, values + at, i + 1 == positions);
    }
  Sequence sequence = {table.data(), 0, rows, positions - rows};
  for (int head = 0; head < kv_heads; ++head)
    for (int first = 0; first < queries; first += together)
      attend_tiled(a, sequence, head, first, queries - first < together ? queries - first : together, 0,
                   (positions + SW_SPLIT - 1) / SW_SPLIT, nullptr, 0, scratch.at);
}

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
