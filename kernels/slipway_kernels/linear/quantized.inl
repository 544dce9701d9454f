/* y = x · Wᵀ where W is small integers with a scale for each group of columns, as codes.inl lays them out, and x is
 * quantized row by row.
 *
 * x takes up to 16 bits and a scale for each 128 columns, a block. Their magnitudes sum to less than 2^19 there, so 32 bits
 * hold the sum of their products with integers of up to 4,096: with any code, and with any code times its scale of the
 * first of two levels. Therefore
 *   a group's sum is exact, cut at the ends of blocks: a part,
 *   of two levels all 128 columns are one part, whose sum of code · scale · x is exact, as is that of minimum · x,
 *   a part's sum is scaled and added to its block's in fp32, and that, times the scale of x, to the output's, in the order
 *   of K.
 * That is the same arithmetic in every tile, so a row's result is the same alone and in a batch, and on each instruction
 * set. Few rows multiply the codes as they come. More rows share 128 columns that were unfolded to words of 16 bits, times
 * the scales of the first level. */

/* 128 columns of a row of x, as pairs of words: 64 of codes, x / scale rounded; then, for each 32 columns, the sum of their
 * codes; then, for each of these, the sum of the first sixteen. A sum is 512 times its first word and the second. */
struct CodeBlock {
#if defined(SW_SPLIT_CODES)
  alignas(64) int8_t upper[SW_CODE_COLUMNS]; /* of the codes, as split_words orders them */
  uint8_t lower[SW_CODE_COLUMNS];
  float sum[SW_CODE_COLUMNS / 32]; /* of each 32 codes, exact */
#endif
  int16_t pair[72][2];
  float scale;
};
enum { CODE_STEPS = 64, SUM_STEP = 64, HALF_SUM_STEP = 68, ALL_STEPS = 72, BLOCKS_OF_X = SW_CODE_COLUMNS / 32 };
constexpr float MOST_CODE = 32767.0f, MOST_SUM = 524096.0f; /* 2^19 less what rounding may add */

static inline void put_sum(int16_t* pair, int32_t sum) { pair[0] = (int16_t)(sum >> 9), pair[1] = (int16_t)(sum & 511); }
static inline int32_t sum_at(const CodeBlock* x, int step) { return x->pair[step][0] * 512 + x->pair[step][1]; }
/* Of 32 columns of a block, or of sixteen of them. */
static inline int32_t block_sum(const CodeBlock* x, int block) { return sum_at(x, SUM_STEP + block); }
static inline int32_t half_sum(const CodeBlock* x, int block, int half) {
  int32_t first = sum_at(x, HALF_SUM_STEP + block);
  return half ? block_sum(x, block) - first : first;
}

template <class T>
static void quantize_typed(const T* x, int width, CodeBlock* out) {
  for (int k = 0; k < width; k += SW_CODE_COLUMNS, ++out) {
    F16 part[SW_CODE_COLUMNS / 16], most = zero(), mean = zero();
    for (int i = 0; i < SW_CODE_COLUMNS / 16; ++i) {
      int left = width - k - i * 16;
      part[i] = left >= 16 ? load(x + k + i * 16) : zero();
      if (left > 0 && left < 16) {
        float lane[16] = {};
        for (int c = 0; c < left; ++c) lane[c] = widen(x[k + i * 16 + c]);
        part[i] = load(lane);
      }
      most = larger(most, magnitude(part[i]));
      mean = fma(magnitude(part[i]), splat(1.0f / SW_CODE_COLUMNS), mean);
    }
    /* The sum is NaN where there is one, and so are the scale and the row's results. */
    float by_most = largest_lane(most) * (1.0f / MOST_CODE), by_sum = sum_lanes(mean) * (SW_CODE_COLUMNS / MOST_SUM);
    out->scale = by_most > by_sum ? by_most : by_sum;
    F16 inverse = splat(out->scale > 1e-34f ? 1.0f / out->scale : 0.0f);
    for (int block = 0; block < BLOCKS_OF_X; ++block) {
      int32_t sums[2];
      store_codes(out->pair[block * 16], part[block * 2] * inverse, part[block * 2 + 1] * inverse, sums);
      put_sum(out->pair[SUM_STEP + block], sums[0] + sums[1]);
      put_sum(out->pair[HALF_SUM_STEP + block], sums[0]);
#if defined(SW_SPLIT_CODES)
      split_words(out->pair[block * 16], out->upper + block * 32, out->lower + block * 32);
      out->sum[block] = (float)(sums[0] + sums[1]);
#endif
    }
  }
}

static void quantize_row(const void* x, int dtype, int width, void* out) {
  if (dtype == SW_BF16)
    quantize_typed((const bf16*)x, width, (CodeBlock*)out);
  else
    quantize_typed((const float*)x, width, (CodeBlock*)out);
}

/* 32 rows of W, or some of their columns, whose first is that of a block of x. */
struct CodeGroups {
  const char* at;
  int blocks, group_blocks; /* of 32 columns: all, and in one group */
  int scale_dtype, zero;    /* zero: the code of 0 */
  size_t ahead;             /* bytes, of what is prefetched; ARM's 8-bit matrices keep to SW_PREFETCH */
};

/* Of W's codes in the form that it has. */
static inline int zero_of(const sw_weight& w) {
  return w.dtype == SW_INT8 || !w.minimums ? zero_code(w.dtype) : 0;
}

/* Rows of a tile, and the numbers of rows from which on unfolding pays: of codes whose planes are joined or whose groups
 * have 16 columns, of others with a table or two levels of scales, and of plain ones. Measured on Zen 5 if
 * nothing else is said; for ARM not at all. */
enum { NEVER = 1 << 30 };
#if defined(__AVX512BF16__)
enum { CODE_ROWS = 8, UNFOLD_JOINED = 13, UNFOLD_SCALED = 25, UNFOLD_PLAIN = NEVER };
#elif defined(__AVX512F__)
/* Everything but a load takes one of the two ports that multiply: a third of what the tiles of codes do. Measured with
 * VNNI on a fifth-generation Xeon. */
enum { CODE_ROWS = 8, UNFOLD_JOINED = 9, UNFOLD_SCALED = 25, UNFOLD_PLAIN = 25 };
#elif defined(__ARM_FEATURE_MATMUL_INT8)
enum { CODE_ROWS = 3, UNFOLD_JOINED = 10 }; /* sums take 24 of 32 registers */
#elif defined(__aarch64__)
enum { CODE_ROWS = 2, UNFOLD_JOINED = 8, UNFOLD_SCALED = 8, UNFOLD_PLAIN = 8 };
#else
enum { CODE_ROWS = 4, UNFOLD_JOINED = 6, UNFOLD_SCALED = 8, UNFOLD_PLAIN = 13 };
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* whole[M][HALF] += the products of STEPS steps, from `first` of 32 columns on; x: their codes. */
template <int DTYPE, int HALF, int STEPS, int M>
static inline void dot_steps(const char* at, const char* uppers, int first, const int16_t* const* x, I16 (*whole)[2]) {
  I16 low[M], high[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) low[m] = whole[m][HALF], high[m] = no_whole();
#pragma GCC unroll 4
  for (int step = 0; step < STEPS; step += 2) {
    P16 even = code_bytes<DTYPE, HALF>(at, uppers, first + step);
    P16 odd = code_bytes<DTYPE, HALF>(at, uppers, first + step + 1);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      int8x16_t bytes = vreinterpretq_s8_s16(vld1q_s16(x[m] + (first + step) * 4));
      dot_bytes<0>(low[m], high[m], even, bytes);
      dot_bytes<1>(low[m], high[m], odd, bytes);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) whole[m][HALF] = both_bytes(low[m], high[m]);
}
#endif

/* Columns of a group, within a block of x; of two levels, times a scale of integers. */
enum Grouping { OF_16, OF_32, OF_MORE, OF_16_IN_256, OF_32_IN_256 };

/* sums[M][32] += x[M] · w, 64 floats from row to row. */
template <int DTYPE, bool MINIMUMS, Grouping GROUPING, int M>
__attribute__((noinline)) static void code_tile(const char* x, size_t x_stride, const CodeGroups& w, float* sums) {
  enum { SUPERS = GROUPING >= OF_16_IN_256, HALVES = GROUPING == OF_16 || GROUPING == OF_16_IN_256 };
  enum { PARTS = HALVES ? 2 : 1, STEPS = 8 / PARTS };
  const char* at = w.at;
  const CodeBlock* row[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) row[m] = (const CodeBlock*)(x + m * x_stride);
  F16 scale[PARTS][2], minimum[PARTS][2], super[2], super_minimum[2];
  for (int first = 0, left = 0; first < w.blocks; first += BLOCKS_OF_X) {
    if (SUPERS && first % (SW_SUPER / 32) == 0) {
      at = take_supers(at, super);
      if (MINIMUMS) at = take_supers(at, super_minimum);
    }
    int blocks = w.blocks - first < BLOCKS_OF_X ? w.blocks - first : BLOCKS_OF_X;
    F16 total[M][2];
    I16 whole[M][2]; /* of a part */
    int32_t sum[M];  /* of a part's codes of x */
    P16 minimums[BLOCKS_OF_X][PARTS][2]; /* of two levels, opposite to the sums of x */
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
      total[m][0] = total[m][1] = zero(), whole[m][0] = whole[m][1] = no_whole(), sum[m] = 0;
    for (int block = 0; block < blocks; ++block) {
      I16 factor[PARTS][2], lowest[PARTS][2];
      if (SUPERS) {
        at = take_whole_factors(at, w.scale_dtype, PARTS, MINIMUMS, factor, lowest);
        for (int half = 0; MINIMUMS && half < 2; ++half) {
          minimums[block][0][half] = sum_words(lowest[PARTS - 1][half]);
          if (HALVES) minimums[block][PARTS - 1][half] = sum_words(minus(lowest[0][half], lowest[PARTS - 1][half]));
        }
      } else if (left == 0) {
        at = take_factors(at, w.scale_dtype, PARTS, MINIMUMS, scale, minimum);
        left = w.group_blocks;
      }
      bool ends = --left == 0 || block + 1 == blocks; /* the part */
      const char *codes_at = at, *uppers = at + lower_bytes(DTYPE);
      [[maybe_unused]] Planes planes;
#pragma GCC unroll 2
      for (int part = 0; part < PARTS; ++part) {
        I16 group[M][2]; /* begins anew, for one row's sums would wait for each other */
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          int32_t of_x = HALVES ? half_sum(row[m], block, part) : block_sum(row[m], block), start = -w.zero * of_x;
          sum[m] = GROUPING == OF_MORE ? sum[m] + of_x : of_x;
          group[m][0] = group[m][1] = splat_whole(&start);
        }
#if defined(__ARM_FEATURE_MATMUL_INT8)
        const int16_t* codes_of_x[M];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) codes_of_x[m] = row[m]->pair[block * 16];
        dot_steps<DTYPE, 0, STEPS, M>(at, uppers, part * STEPS, codes_of_x, group);
        dot_steps<DTYPE, 1, STEPS, M>(at, uppers, part * STEPS, codes_of_x, group);
#else
        for (int step = part * STEPS; step < (part + 1) * STEPS; ++step) {
          P16 codes[2][2];
          take_codes<DTYPE>(at, uppers, step, planes, codes, w.ahead);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int pair = 0; pair < 2; ++pair) {
              P16 two = splat_pair((const bf16*)row[m]->pair[block * 16 + step * 2 + pair]);
              group[m][0] = dot_words(group[m][0], codes[0][pair], two);
              group[m][1] = dot_words(group[m][1], codes[1][pair], two);
            }
        }
#endif
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          F16 of_x = splat((float)sum[m]);
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            I16 exact = SUPERS ? times(group[m][half], factor[part][half]) : group[m][half];
            if (SUPERS || GROUPING == OF_MORE) exact = whole[m][half] = plus(whole[m][half], exact);
            if (SUPERS || (GROUPING == OF_MORE && !ends)) continue; /* the part goes on */
            total[m][half] = fma(to_float(exact), scale[part][half], total[m][half]);
            if (MINIMUMS) total[m][half] = fma(of_x, minimum[part][half], total[m][half]);
            whole[m][half] = no_whole();
          }
        }
      }
      if (GROUPING == OF_MORE && ends)
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = 0;
      at = codes_at + sw_codes_bytes(DTYPE);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      F16 own = splat(row[m]->scale);
      I16 least[2] = {no_whole(), no_whole()};
      for (int block = 0; SUPERS && MINIMUMS && block < BLOCKS_OF_X; ++block)
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; ++part) {
          P16 of_x = splat_pair((const bf16*)row[m]->pair[(part ? HALF_SUM_STEP : SUM_STEP) + block]);
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) least[half] = dot_words(least[half], minimums[block][part][half], of_x);
        }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        if (SUPERS) total[m][half] = fma(to_float(whole[m][half]), super[half], zero());
        if (SUPERS && MINIMUMS) total[m][half] = fma(to_float(least[half]), super_minimum[half], total[m][half]);
        float* to = sums + m * 64 + half * 16;
        store(to, fma(total[m][half], own, load(to)));
      }
      ++row[m];
    }
  }
}

template <int DTYPE, bool MINIMUMS, Grouping GROUPING>
struct CodeTiles {
  /* The tile of exactly `rows` rows, 1 to M. */
  template <int M>
  static inline void of(int rows, const char* x, size_t x_stride, const CodeGroups& w, float* sums) {
    if constexpr (M > 0) {
      if (rows < M)
        of<M - 1>(rows, x, x_stride, w, sums);
      else
        code_tile<DTYPE, MINIMUMS, GROUPING, M>(x, x_stride, w, sums);
    }
  }
};

/* dtype: of the codes that `w` has, which may be the weight's in bytes. */
static void multiply_codes(const sw_weight& weight, int dtype, const CodeGroups& w, const char* x, size_t x_stride,
                           int rows, float* sums) {
#define SW_TILES(...) CodeTiles<__VA_ARGS__>::of<CODE_ROWS>(rows, x, x_stride, w, sums)
  bool halves = sw_has_halves(weight), minimums = weight.minimums, supers = sw_has_supers(weight.scale_dtype);
  bool longer = weight.group > 32;
  switch (dtype) {
    case SW_INT2:
      return supers ? SW_TILES(SW_INT2, true, OF_16_IN_256) : SW_TILES(SW_INT2, true, OF_16);
    case SW_INT3:
      return supers ? SW_TILES(SW_INT3, false, OF_16_IN_256) : SW_TILES(SW_INT3, false, OF_16);
    case SW_INT4:
      if (supers) return SW_TILES(SW_INT4, true, OF_32_IN_256);
      if (halves) return minimums ? SW_TILES(SW_INT4, true, OF_16) : SW_TILES(SW_INT4, false, OF_16);
      if (longer) return minimums ? SW_TILES(SW_INT4, true, OF_MORE) : SW_TILES(SW_INT4, false, OF_MORE);
      return minimums ? SW_TILES(SW_INT4, true, OF_32) : SW_TILES(SW_INT4, false, OF_32);
    case SW_INT5:
      if (supers) return SW_TILES(SW_INT5, true, OF_32_IN_256);
      return minimums ? SW_TILES(SW_INT5, true, OF_32) : SW_TILES(SW_INT5, false, OF_32);
    case SW_INT6:
      return supers ? SW_TILES(SW_INT6, false, OF_16_IN_256) : SW_TILES(SW_INT6, false, OF_16);
    case SW_IQ4:
      return supers ? SW_TILES(SW_IQ4, false, OF_32_IN_256) : SW_TILES(SW_IQ4, false, OF_32);
    case SW_E2M1:
      return SW_TILES(SW_E2M1, false, OF_32);
    default:
#if defined(__ARM_FEATURE_MATMUL_INT8)
      if (supers && halves)
        return minimums ? SW_TILES(SW_INT8, true, OF_16_IN_256) : SW_TILES(SW_INT8, false, OF_16_IN_256);
      if (supers) return minimums ? SW_TILES(SW_INT8, true, OF_32_IN_256) : SW_TILES(SW_INT8, false, OF_32_IN_256);
#endif
      if (halves) return minimums ? SW_TILES(SW_INT8, true, OF_16) : SW_TILES(SW_INT8, false, OF_16);
      if (longer) return minimums ? SW_TILES(SW_INT8, true, OF_MORE) : SW_TILES(SW_INT8, false, OF_MORE);
      return minimums ? SW_TILES(SW_INT8, true, OF_32) : SW_TILES(SW_INT8, false, OF_32);
  }
#undef SW_TILES
}
