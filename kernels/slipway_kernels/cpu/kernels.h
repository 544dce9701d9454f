/* What every instruction set provides: the bodies of the operations over a range of their units. The caller
 * decides who computes which unit; no result depends on that. */
#ifndef SLIPWAY_KERNELS_H
#define SLIPWAY_KERNELS_H

#include "slipway.h"

enum { SW_FP16 = 2 }; /* of a checkpoint's tensors only */
enum { SW_NO_ACTIVATION = 0, SW_SILU = 1, SW_GELU = 2, SW_GELU_TANH = 3 };
enum {
  SW_ROWS = 12,           /* rows (or queries) of a register tile on the widest instruction set */
  SW_MAX_HEAD_DIM = 256,
  SW_ATTENTION_TILE = 64, /* positions that one online-softmax update covers */
  SW_SPLIT = 512,         /* positions whose partial results are merged in order */
  SW_PART = SW_MAX_HEAD_DIM + 16 /* floats of one partial result: 16 for maximum and sum, then the sums of V */
};

/* out[rows, column + n] (+)= x[rows, k] · W[n, k]ᵀ; gated where `activation` is set. */
struct Product {
  const void* x;
  size_t x_stride;
  const void* w;
  int n, k, dtype;
  void* out; /* at its first column */
  size_t out_stride;
  int out_dtype;
  const float* bias; /* padded to whole blocks, or null */
  int accumulate, activation;
  float softcap;
};

/* Where one layer's keys and values lie in the pages of its group. */
struct LayerPages {
  char* base; /* of page 0, at this layer */
  size_t page_bytes;
  int block, kv_heads, head_dim, dtype;
};

struct Attention {
  LayerPages pages;
  int heads, window;
  float scale, softcap;
  const void* q;
  size_t q_stride;
  void* out;
  size_t out_stride;
};

/* The rows of one request in a step. */
struct Sequence {
  const int32_t* table; /* pages of this group */
  int first_row, rows, first_position;
};

struct HeadNorm {
  const float *q, *k; /* weights, or null */
  float eps;
  int add_one;
};

struct Kernels {
  const char* name;
  void (*linear)(const Product&, int row_begin, int row_end, int block_begin, int block_end);
  void (*rms_norm)(const float* x, const float* weight, void* out, int width, float eps, int add_one,
                   int accumulate, int out_dtype);
  /* One head of one token: normalised, rotated; into a row of queries, or into its page. */
  void (*rotate_query)(const float* head, int head_dim, const float* cos_sin, int rotary_dim, const float* weight,
                       float eps, int add_one, void* out, int out_dtype);
  void (*store_key)(const LayerPages&, const int32_t* table, int position, int kv_head, const float* head,
                    const float* cos_sin, int rotary_dim, const float* weight, float eps, int add_one);
  void (*store_value)(const LayerPages&, const int32_t* table, int position, int kv_head, const float* head,
                      int last);
  /* Queries [first, first + count) of one key head, counted row by row over the heads that share it. Splits
   * [begin, end) of the positions; partial results go to `parts` where given, else the merged one to `out`. */
  void (*attend)(const Attention&, const Sequence&, int kv_head, int first, int count, int split_begin,
                 int split_end, float* parts, size_t parts_stride, void* scratch);
  void (*merge_parts)(const Attention&, const Sequence&, int kv_head, int first, int count, int splits,
                      const float* parts, size_t parts_stride);
  void (*route)(const float* logits, int experts, int top_k, int normalize, int32_t* ids, float* weights);
  void (*combine)(float* out, const float* y, const int32_t* places, const float* weights, int top_k, int width,
                  size_t y_stride);
  void (*add_gated)(float* out, const float* y, float gate, int width);
  void (*pack_rows)(void* packed, int k, int dtype, const void* source, int source_dtype, size_t source_stride,
                    int rows, const int32_t* destination);
  void (*read_row)(const void* packed, int k, int dtype, int row, float scale, float* out);
};

const Kernels& sw_kernels_generic();
const Kernels& sw_kernels_avx2();
const Kernels& sw_kernels_avx512();
const Kernels& sw_kernels_avx512bf16();

/* The widest that this processor runs, or what SLIPWAY_CPU_ISA names. */
const Kernels& sw_kernels();
size_t sw_attention_scratch_bytes();

#endif
