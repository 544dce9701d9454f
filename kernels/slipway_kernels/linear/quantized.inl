/* y = x · Wᵀ where W is small integers with a scale for each group of columns, and x is quantized row by row.
 *
 * W lies in blocks of 32 rows. A block is its groups in order: 32 scales, 32 minimums where there are any, then
 * for each 32 columns eight steps of four columns. Groups of 16 columns lie in pairs: the scales of both, then the
 * 32 columns. A step of 8 bits is [32][4] bytes, each the code + 128; one of
 * 4 bits is [16][4] bytes, row r's code in the low half and row r + 16's in the high half. The four columns stand
 * in the order 0, 2, 1, 3: the even bytes are two neighbours, as words of 16 bits, and so are the odd ones.
 *
 * x takes 16 bits and a scale for each 32 columns. Products of codes are summed exactly over these 32, then
 * scaled and added to the output's one fp32 sum in the order of K: the result is the same in every tile. */

/* 32 columns of a row of x. */
struct CodeBlock {
  int16_t code[32]; /* x / scale, rounded */
  float scale;
  float sum;        /* of the codes, times the scale */
  int32_t start[2]; /* -128 times the sum of the codes, where symmetric sums of 8 bits begin, and of the first 16 */
};
static_assert(sizeof(CodeBlock) == SW_CODE_BLOCK_BYTES, "rows of codes are laid out by kernels.h");

/* The byte of a step in which column c of its four stands. */
static inline int place_of(int c) { return (c & 1) << 1 | c >> 1; }

/* Four bytes, each where `place_of` has it. */
static inline uint32_t in_place(uint32_t four) {
  return (four & 0xff0000ffu) | (four >> 8 & 0x0000ff00u) | (four << 8 & 0x00ff0000u);
}

#if defined(__AVX512F__)
enum { CODE_ROWS = 6 }; /* 12 need more registers than the compiler finds: 181 GFLOP/s fall to 140 */
#else
enum { CODE_ROWS = 4 };
#endif

/* 32 rows of W. */
struct CodeGroups {
  const char* at;
  int blocks, group_blocks; /* of 32 columns: all, and in one group */
  int scale_dtype;
};

template <class T>
static void quantize_typed(const T* x, int width, CodeBlock* out) {
  for (int k = 0; k < width; k += 32, ++out) {
    int count = width - k < 32 ? width - k : 32;
    F16 low, high;
    if (count == 32) {
      low = load(x + k), high = load(x + k + 16);
    } else {
      float lane[32] = {};
      for (int i = 0; i < count; ++i) lane[i] = widen(x[k + i]);
      low = load(lane), high = load(lane + 16);
    }
    float most = largest_magnitude(low, high); /* NaN where there is one, so that the row's results are */
    out->scale = most * (1.0f / 32767.0f);
    F16 inverse = splat(most > 1e-30f ? 32767.0f / most : 0.0f);
    int32_t sums[2];
    store_codes(out->code, low * inverse, high * inverse, sums);
    int64_t sum = (int64_t)sums[0] + sums[1]; /* wide: of what is not a number the sums are anything */
    out->sum = out->scale * (float)sum;
    out->start[0] = (int32_t)(-128 * sum);
    out->start[1] = (int32_t)(-128 * (int64_t)sums[0]);
  }
}

static void quantize_row(const void* x, int dtype, int width, void* out) {
  if (dtype == SW_BF16)
    quantize_typed((const bf16*)x, width, (CodeBlock*)out);
  else
    quantize_typed((const float*)x, width, (CodeBlock*)out);
}

/* 32 scales or minimums. */
static inline const char* take_scales(const char* at, int dtype, F16* scale) {
  for (int half = 0; half < 2; ++half)
    scale[half] = dtype == SW_FP16 ? load_halves((const uint16_t*)at + half * 16) : load((const float*)at + half * 16);
  return at + 32 * (dtype == SW_FP16 ? 2 : 4);
}

/* 64 bytes of a step. */
static inline P16 take_step(const char*& at) {
  P16 bytes = load_pairs((const bf16*)at);
  __builtin_prefetch(at + SW_PREFETCH);
  at += 64;
  return bytes;
}

/* Where the sum of symmetric codes begins: of 32 columns, or of the first or second half of them. */
template <int BITS>
static inline I16 start_of(const CodeBlock* x) {
  int32_t start = BITS == 4 ? x->start[0] / 16 : x->start[0];
  return splat_whole(&start);
}
static inline I16 start_of_half(const CodeBlock* x, int half) {
  int32_t start = half ? x->start[0] - x->start[1] : x->start[1];
  return splat_whole(&start);
}

/* sums[M][32] = x[M] · w, 64 floats from row to row. HALVES: groups have 16 columns. */
template <int BITS, bool MINIMUMS, bool HALVES, int M>
__attribute__((noinline)) static void code_tile(const char* x, size_t x_stride, const CodeGroups& w, float* sums) {
  enum { SYMMETRIC = BITS == 8 || !MINIMUMS, PARTS_OF_BLOCK = HALVES ? 2 : 1, STEPS = 8 / PARTS_OF_BLOCK };
  static_assert(!HALVES || (BITS == 8 && !MINIMUMS), "groups of 16 columns are of 8 bits, and symmetric");
  for (int m = 0; m < M; ++m) store(sums + m * 64, zero()), store(sums + m * 64 + 16, zero());
  const char *at = w.at, *row[(M + 2) / 3];
  for (int i = 0; i < (M + 2) / 3; ++i) row[i] = x + i * 3 * x_stride;
  F16 scale[PARTS_OF_BLOCK][2], minimum[2];
  for (int block = 0, left = 0; block < w.blocks; ++block, --left) {
    if (left == 0) {
      for (int part = 0; part < PARTS_OF_BLOCK; ++part) at = take_scales(at, w.scale_dtype, scale[part]);
      if (MINIMUMS) at = take_scales(at, w.scale_dtype, minimum);
      left = w.group_blocks;
    }
    for (int part = 0; part < PARTS_OF_BLOCK; ++part) {
      I16 whole[M][2];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const CodeBlock* from = (const CodeBlock*)(row[m / 3] + (m % 3) * x_stride);
        whole[m][0] = whole[m][1] = HALVES      ? start_of_half(from, part)
                                    : SYMMETRIC ? start_of<BITS>(from)
                                                : no_whole();
      }
      for (int step = part * STEPS; step < (part + 1) * STEPS; ++step) {
        P16 codes[2][2]; /* rows 0 to 15 and 16 to 31; columns 0 and 1, 2 and 3 */
        P16 bytes = take_step(at);
        if (BITS == 4) {
          codes[0][0] = field<0, 4>(bytes), codes[0][1] = field<8, 4>(bytes);
          codes[1][0] = field<4, 4>(bytes), codes[1][1] = field<12, 4>(bytes);
        } else {
          codes[0][0] = field<0, 8>(bytes), codes[0][1] = field<8, 8>(bytes);
          bytes = take_step(at);
          codes[1][0] = field<0, 8>(bytes), codes[1][1] = field<8, 8>(bytes);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const CodeBlock* from = (const CodeBlock*)(row[m / 3] + (m % 3) * x_stride);
#pragma GCC unroll 2
          for (int pair = 0; pair < 2; ++pair) {
            P16 two = splat_pair((const bf16*)(from->code + step * 4 + pair * 2));
            whole[m][0] = dot_words(whole[m][0], codes[0][pair], two);
            whole[m][1] = dot_words(whole[m][1], codes[1][pair], two);
          }
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const CodeBlock* from = (const CodeBlock*)(row[m / 3] + (m % 3) * x_stride);
        F16 own = splat(from->scale), shift = splat(from->sum);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          float* to = sums + m * 64 + half * 16;
          F16 sum = fma(to_float(whole[m][half]), scale[part][half] * own, load(to));
          store(to, MINIMUMS ? fma(minimum[half], shift, sum) : sum);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < (M + 2) / 3; ++i) row[i] += sizeof(CodeBlock);
  }
}

template <int BITS, bool MINIMUMS, bool HALVES = false>
struct CodeTiles {
  /* The tile of exactly `rows` rows, 1 to M. */
  template <int M>
  static inline void of(int rows, const char* x, size_t x_stride, const CodeGroups& w, float* sums) {
    if constexpr (M > 0) {
      if (rows == M)
        code_tile<BITS, MINIMUMS, HALVES, M>(x, x_stride, w, sums);
      else
        of<M - 1>(rows, x, x_stride, w, sums);
    }
  }
};

static void multiply_codes(const sw_weight& weight, const CodeGroups& w, const char* x, size_t x_stride, int rows,
                           float* sums) {
  if (weight.dtype == SW_INT4 && weight.minimums)
    CodeTiles<4, true>::of<CODE_ROWS>(rows, x, x_stride, w, sums);
  else if (weight.dtype == SW_INT4)
    CodeTiles<4, false>::of<CODE_ROWS>(rows, x, x_stride, w, sums);
  else if (weight.minimums)
    CodeTiles<8, true>::of<CODE_ROWS>(rows, x, x_stride, w, sums);
  else if (sw_has_halves(weight))
    CodeTiles<8, false, true>::of<CODE_ROWS>(rows, x, x_stride, w, sums);
  else
    CodeTiles<8, false>::of<CODE_ROWS>(rows, x, x_stride, w, sums);
}

static void linear_codes(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  alignas(64) float sums[CODE_ROWS * 64];
  size_t block_bytes = sw_block_bytes(p.w);
  int rows = row_end - row_begin, tiles = (rows + CODE_ROWS - 1) / CODE_ROWS;
  int tile_rows = tiles ? (rows + tiles - 1) / tiles : 0;
  for (int block = block_begin; block < block_end; ++block) {
    CodeGroups w = {(const char*)p.w.at + block * block_bytes, (p.w.k + 31) / 32, (p.w.group + 31) / 32,
                    p.w.scale_dtype};
    for (int row = row_begin; row < row_end; row += tile_rows) {
      int count = row_end - row < tile_rows ? row_end - row : tile_rows;
      multiply_codes(p.w, w, (const char*)p.x + (size_t)row * p.x_stride, p.x_stride, count, sums);
      if (p.out_dtype == SW_BF16)
        finish_tile<bf16>(p, sums, row, count, block, 1);
      else
        finish_tile<float>(p, sums, row, count, block, 1);
    }
  }
}

static void linear(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  /* Rows in parts that stay in the second-level cache while the blocks pass by: without, the rate falls by a
   * quarter from M = 128 to M = 512 (K = 2048, Zen 4). */
  int codes = sw_is_integers(p.w.dtype);
  size_t row_bytes = codes ? sw_code_row_bytes(p.w.k) : (size_t)p.w.k * (p.w.dtype == SW_BF16 ? 2 : 4);
  int part = (int)(PART_BYTES / row_bytes) / ROWS * ROWS;
  part = part < 4 * ROWS ? 4 * ROWS : part;
  for (int row = row_begin; row < row_end; row += part) {
    int end = row_end - row < part ? row_end : row + part;
    if (codes)
      linear_codes(p, row, end, block_begin, block_end);
    else if (p.w.dtype == SW_BF16)
      linear_typed<bf16>(p, row, end, block_begin, block_end);
    else
      linear_typed<float>(p, row, end, block_begin, block_end);
  }
}

/* A row's scale or minimum among its block's 32; returns where what follows them lies. */
static inline char* put_scale(char* at, int row, const char* scale, size_t bytes) {
  if (bytes == 2)
    memcpy(at + row * 2, scale, 2);
  else
    memcpy(at + row * 4, scale, 4);
  return at + 32 * bytes;
}

/* Up to 32 columns of a row, padded with zeros; returns where the next 32 lie. */
static inline char* put_codes(char* at, int row, int dtype, const uint8_t* codes, int columns) {
  uint32_t steps[8] = {};
  if (columns >= 32)
    memcpy(steps, codes, 32);
  else
    memcpy(steps, codes, columns);
  for (int step = 0; step < 8; ++step) {
    uint32_t four = in_place(steps[step]);
    if (dtype == SW_INT8) {
      four ^= 0x80808080u;
      memcpy(at + step * 128 + row * 4, &four, 4);
    } else {
      char* pairs = at + step * 64 + row % 16 * 4;
      uint32_t both;
      memcpy(&both, pairs, 4);
      both = row < 16 ? (both & 0xf0f0f0f0u) | four : (both & 0x0f0f0f0fu) | four << 4;
      memcpy(pairs, &both, 4);
    }
  }
  return at + (dtype == SW_INT4 ? 512 : 1024);
}

/* Rows into the packed layout. codes [rows, code_stride] as in slipway.h; scales and minimums [rows, groups] in
 * the weight's type of scales. */
static void pack_codes(const sw_weight& w, const uint8_t* codes, size_t code_stride, const void* scales,
                       const void* minimums, int rows, const int32_t* destination) {
  size_t scale_bytes = w.scale_dtype == SW_FP16 ? 2 : 4, groups = (w.k + w.group - 1) / w.group;
  int halves = sw_has_halves(w), width = halves ? 32 : w.group;
  const char none[4] = {};
  for (int i = 0; i < rows; ++i) {
    int row = destination[i] % 32;
    char* at = (char*)w.at + destination[i] / 32 * sw_block_bytes(w);
    const uint8_t* code = codes + i * code_stride;
    size_t scale = i * groups * scale_bytes;
    for (int group = 0; group < w.k; group += width) {
      at = put_scale(at, row, (const char*)scales + scale, scale_bytes);
      if (w.minimums) at = put_scale(at, row, (const char*)minimums + scale, scale_bytes);
      scale += scale_bytes;
      if (halves) {
        int second = group + 16 < w.k;
        at = put_scale(at, row, second ? (const char*)scales + scale : none, scale_bytes);
        scale += second ? scale_bytes : 0;
      }
      int end = w.k - group < width ? w.k : group + width;
      for (int k = group; k < end; k += 32) at = put_codes(at, row, w.dtype, code + k, end - k);
    }
  }
}

/* One row of W in fp32, times `factor`. */
static void read_codes(const sw_weight& w, int row, float factor, float* out) {
  int blocks = (w.k + 31) / 32, group_blocks = (w.group + 31) / 32;
  const char* at = (const char*)w.at + row / 32 * sw_block_bytes(w);
  alignas(64) float scale[2][32], minimum[32] = {}; /* of the columns up to 16, and of the others */
  row %= 32;
  for (int block = 0; block < blocks; ++block) {
    if (block % group_blocks == 0) {
      F16 lanes[2];
      for (int half = 0; half < 2; ++half) {
        if (half == 0 || sw_has_halves(w)) at = take_scales(at, w.scale_dtype, lanes);
        store(scale[half], lanes[0]), store(scale[half] + 16, lanes[1]);
      }
      if (w.minimums) {
        at = take_scales(at, w.scale_dtype, lanes);
        store(minimum, lanes[0]), store(minimum + 16, lanes[1]);
      }
    }
    int count = w.k - block * 32 < 32 ? w.k - block * 32 : 32;
    for (int c = 0; c < count; ++c) {
      int code;
      if (w.dtype == SW_INT8) {
        code = (uint8_t)at[c / 4 * 128 + row * 4 + place_of(c % 4)] - 128;
      } else {
        int pair = (uint8_t)at[c / 4 * 64 + row % 16 * 4 + place_of(c % 4)];
        code = (row < 16 ? pair & 15 : pair >> 4) - (w.minimums ? 0 : 8);
      }
      out[block * 32 + c] = (scale[c / 16][row] * (float)code + minimum[row]) * factor;
    }
    at += w.dtype == SW_INT4 ? 512 : 1024;
  }
}
