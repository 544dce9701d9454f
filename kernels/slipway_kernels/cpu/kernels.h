/* What every instruction set provides: the bodies of the operations over a range of their units. The caller
 * decides who computes which unit; no result depends on that. */
#ifndef SLIPWAY_KERNELS_H
#define SLIPWAY_KERNELS_H

#include "slipway.h"

enum { SW_NO_ACTIVATION = 0, SW_SILU = 1, SW_GELU = 2, SW_GELU_TANH = 3, SW_RELU = 4, SW_TANH = 5 };
enum {
  SW_ROWS = 12,           /* rows of a register tile on the widest vectors */
  SW_QUERIES = 16,        /* of a unit of attention, at most */
  SW_MAX_HEAD_DIM = 256,
  SW_ATTENTION_TILE = 64, /* positions that one online-softmax update covers */
  SW_SPLIT = 512,         /* positions whose partial results are merged in order */
  SW_PART = SW_MAX_HEAD_DIM + 16 /* floats of one partial result: 16 for maximum and sum, then the sums of V */
};

/* Weights of integers multiply rows that quantize_row wrote. */
static inline int sw_is_integers(int dtype) { return dtype == SW_INT4 || dtype == SW_INT8 || dtype >= SW_INT5; }
/* Columns of such a row whose codes, sums and scale stand together. */
enum { SW_CODE_COLUMNS = 128 };
/* From one such row to the next, as the instruction set in use has them: an odd number of cache lines, so that the rows of a
 * tile do not fall into few sets of a cache. */
size_t sw_code_row_bytes(int width);
/* Whether both halves of 32 columns have scales of their own. */
static inline int sw_has_halves(const sw_weight& w) { return w.group == 16 && w.k > 16; }
/* Columns whose scales of the first level share one of the second. */
enum { SW_SUPER = 256 };
/* Whether scales have two levels. */
static inline int sw_has_supers(int scale_dtype) { return scale_dtype == SW_TWO_LEVELS || scale_dtype == SW_NIBBLES; }
/* Of a code; entries of tables are numbered by four. */
static constexpr int sw_code_bits(int dtype) {
  return dtype == SW_INT2   ? 2
         : dtype == SW_INT3 ? 3
         : dtype == SW_INT5 ? 5
         : dtype == SW_INT6 ? 6
         : dtype == SW_INT8 ? 8
                            : 4;
}
/* Of the codes of 32 rows and 32 columns. */
static constexpr size_t sw_codes_bytes(int dtype) { return sw_code_bits(dtype) * 128; }
/* Of what 32 rows have for a group: scales of the first level, and minimums. */
static inline size_t sw_group_bytes(const sw_weight& w) {
  if (w.scale_dtype == SW_NIBBLES) return 32;
  size_t scale = w.scale_dtype == SW_FP16 ? 64 : w.scale_dtype == SW_FP32 ? 128 : 32;
  return scale * (w.minimums ? 2 : 1);
}
/* Of a packed block of 32 rows. */
static inline size_t sw_block_bytes(const sw_weight& w) {
  if (w.dtype == SW_BF16) return (size_t)(w.k + 1) / 2 * 128;
  if (w.dtype == SW_FP32) return (size_t)w.k * 128;
  if (w.dtype == SW_E4M3) return (size_t)(w.k + 1) / 2 * 64 + (size_t)(w.k + w.group - 1) / w.group * 128;
  size_t blocks = (w.k + 31) / 32, groups = sw_has_halves(w) ? 2 * blocks : (w.k + w.group - 1) / w.group;
  size_t supers = sw_has_supers(w.scale_dtype) ? (w.k + SW_SUPER - 1) / SW_SUPER : 0;
  return blocks * sw_codes_bytes(w.dtype) + groups * sw_group_bytes(w) + supers * 64 * (w.minimums ? 2 : 1);
}

/* out[rows, column + n] (+)= x[rows, k] · W[n, k]ᵀ; gated where `activation` is set. */
struct Product {
  const void* x;
  size_t x_stride; /* in elements; in bytes for integers */
  sw_weight w;
  int n; /* may be less than the weight's */
  void* out; /* at its first column */
  size_t out_stride;
  int out_dtype;
  const float* bias; /* padded to whole blocks, or null */
  int accumulate, activation;
  float softcap;
  int pointwise = SW_NO_ACTIVATION; /* of each output, behind the bias; where `activation` is not set */
  int next_unit = 0; /* blocks of W from the first one to that of the thread's next call, where that can be guessed */
};

/* Where one layer's keys and values lie in the pages of its group: in `dtype`, what the program computes in,
 * or divided by their scales in the eight bits of `stored`. Floats have the layer's scales. Integers have one for each
 * position and key head, in fp32 behind the codes: [kv_heads][block] of keys, then of values. */
struct LayerPages {
  char* base; /* of page 0, at this layer */
  size_t page_bytes;
  int block, kv_heads, head_dim, dtype, stored;
  float key_scale, value_scale;
};

/* Keys and values of one layer in a page, without scales. */
static inline size_t sw_kv_bytes(int kv_heads, int head_dim, int block, int dtype) {
  size_t lanes = (head_dim + 15) / 16 * 16, rows = dtype == SW_FP32 ? block : (block + 1) / 2 * 2;
  size_t element = dtype == SW_FP32 ? 4 : dtype == SW_BF16 ? 2 : 1;
  return (kv_heads * ((size_t)head_dim * block + lanes * rows) * element + 63) / 64 * 64;
}

struct Attention {
  LayerPages pages;
  int heads, window;
  float scale, softcap;
  const void* q;
  size_t q_stride;
  void* out;
  size_t out_stride;
  bool both_ways; /* a row sees those after it, too: all, or `window` to each side, itself included */
  int first; /* positions before this one are seen by their own rows alone */
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

/* Where rows [*, columns] go that are rounded to SW_INT4, SW_INT8 or SW_E4M3: one code in a byte. */
struct sw_rounded {
  int dtype, group;
  uint8_t* codes;
  float *scales, *minimums; /* [*, columns / group]; minimums of four bits only */
};

/* Rows of a matrix, which lie anywhere in it. */
struct LowRows {
  const void* at;
  size_t stride; /* in elements */
  const int32_t* rows;
  int count;
};

struct Kernels {
  const char* name;
  size_t code_block_bytes; /* of SW_CODE_COLUMNS that quantize_row wrote */
  int queries;             /* of a unit of attention */
  void (*linear)(const Product&, int row_begin, int row_end, int block_begin, int block_end);
  /* out[width] = activation(gate) · up of a row, from sixteen numbers to the next `step` floats on. */
  void (*gate_row)(const float* gate, const float* up, int step, int activation, void* out, int width, int out_dtype);
  void (*activate_row)(const float* x, const float* bias, int activation, void* out, int width, int accumulate,
                       int out_dtype);
  void (*rms_norm)(const float* x, const float* weight, void* out, int width, float eps, int add_one,
                   int accumulate, int out_dtype);
  /* To `out`, and in fp32 to `kept` where given, which may be x. */
  void (*layer_norm)(const float* x, const float* weight, const float* bias, void* out, float* kept, int width,
                     float eps, int out_dtype);
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
  void (*merge_parts)(const Attention&, const Sequence&, int kv_head, int first, int count, int split_begin,
                      int split_end, const float* parts, size_t parts_stride);
  void (*route)(const float* logits, int experts, int top_k, int normalize, int32_t* ids, float* weights);
  void (*combine)(float* out, const float* y, const int32_t* places, const float* weights, int top_k, int width,
                  size_t y_stride, int accumulate);
  void (*add_gated)(float* out, const float* y, float gate, int width);
  /* Rows [first, first + count) of the source; destination is of the first of all. */
  void (*pack_rows)(const sw_weight&, const sw_source&, int first, int count, const int32_t* destination);
  /* The same as plain rows [*, columns] of fp32 or bf16, out being of the first of all. */
  void (*convert_rows)(const sw_source&, int columns, int first, int count, void* out, int out_dtype);
  /* The same, brought to `through` and then rounded to codes with a scale for each `group` columns. */
  void (*round_rows)(const sw_source&, int columns, int first, int count, int through, const sw_rounded&);
  void (*pack_codes)(const sw_weight&, const uint8_t* codes, size_t code_stride, const void* scales,
                     const void* minimums, int rows, const int32_t* destination);
  /* Rows of a GGUF block type, `row_bytes` from one to the next. */
  void (*pack_blocks)(const sw_weight&, int type, const uint8_t* blocks, size_t row_bytes, int rows,
                      const int32_t* destination);
  void (*read_row)(const sw_weight&, int row, float scale, float* out);
  /* A row of fp32 or bf16 as the codes that weights of integers multiply. */
  void (*quantize_row)(const void* x, int dtype, int width, void* out);
  /* h[i] = A · x[i] of columns 16 · [begin, end), x of `dtype`. */
  void (*shrink)(const sw_adapter&, int k, const LowRows& x, int begin, int end, int dtype, void* h, size_t stride,
                 int h_dtype);
  /* out[i] += B · h[i] + bias of columns 16 · [begin, end) that are below n. */
  void (*expand)(const sw_adapter&, const void* h, size_t h_stride, int dtype, const LowRows& out, int n, int begin,
                 int end);
  void (*cap_row)(float* row, int width, float softcap);
};

const Kernels& sw_kernels_generic();
const Kernels& sw_kernels_avx2();
const Kernels& sw_kernels_avxvnni();
const Kernels& sw_kernels_avx512();
const Kernels& sw_kernels_avx512vnni();
const Kernels& sw_kernels_avx512bf16();
const Kernels& sw_kernels_amx();
const Kernels& sw_kernels_neon();
const Kernels& sw_kernels_neonbf16();

/* The fastest known that this processor runs, or what SLIPWAY_CPU_ISA names. */
const Kernels& sw_kernels();
size_t sw_attention_scratch_bytes();

#endif
