/* Products of integers with many rows: 32 rows of W are taken apart once for many tiles (quantized.inl has the arithmetic).
 * ARM's 8-bit matrices want codes in bytes; everything else gets words of code · scale. */

#if defined(__ARM_FEATURE_MATMUL_INT8)

enum { PANEL = 4096 }; /* columns whose codes are unfolded to bytes at once: some 130 KiB stay in the second-level cache */

/* The columns of a panel in the form of eight bits; returns what follows them. */
static const char* unfold_panel(const sw_weight& w, const CodeGroups& panel, char* to) {
  int supers = sw_has_supers(w.scale_dtype), halves = sw_has_halves(w) ? 2 : 1, twice = w.minimums ? 2 : 1;
  const char* at = panel.at;
  auto keep = [&](size_t bytes) { memcpy(to, at, bytes), at += bytes, to += bytes; };
  for (int block = 0; block < panel.blocks; ++block, to += 1024) {
    if (supers && block % (SW_SUPER / 32) == 0) keep(64 * twice);
    if (block % panel.group_blocks == 0) keep(sw_group_bytes(w) * halves);
    widen_codes(w.dtype, at, to);
    at += sw_codes_bytes(w.dtype);
  }
  return at;
}

static void linear_codes(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  alignas(64) float sums[TILES_TOGETHER * CODE_ROWS * 64];
  alignas(64) char unfolded[PANEL / 32 * (1024 + 256) + PANEL / SW_SUPER * 128];
  size_t block_bytes = sw_block_bytes(p.w);
  int rows = row_end - row_begin, tile_rows = even_tiles(rows, CODE_ROWS);
  int blocks = (p.w.k + 31) / 32, group_blocks = (p.w.group + 31) / 32;
  /* It pays to join codes of two planes once for many tiles, where panels are whole groups. */
  bool unfolds = rows >= UNFOLD_JOINED && upper_bits(p.w.dtype) > 0 && PANEL / 32 % group_blocks == 0;
  int panel_blocks = unfolds ? PANEL / 32 : blocks;
  for (int block = block_begin; block < block_end; ++block) {
    const char* from = nullptr; /* of what stands in `unfolded` */
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TILES_TOGETHER * tile_rows ? row_end : row + TILES_TOGETHER * tile_rows;
      clear_rows(sums, end - row);
      const char *at = (const char*)p.w.at + block * block_bytes, *next = nullptr;
      for (int first = 0; first < blocks; first += panel_blocks, at = next) {
        int count = blocks - first < panel_blocks ? blocks - first : panel_blocks;
        CodeGroups w = {at, count, group_blocks, p.w.scale_dtype, zero_of(p.w), SW_PREFETCH};
        if (unfolds && from != at) next = unfold_panel(p.w, w, unfolded), from = at;
        if (unfolds) w.at = unfolded;
        const char* x = (const char*)p.x + (size_t)row * p.x_stride + (size_t)(first / BLOCKS_OF_X) * sizeof(CodeBlock);
        for (int i = 0; i < end - row; i += tile_rows)
          multiply_codes(p.w, unfolds ? int(SW_INT8) : p.w.dtype, w, x + i * p.x_stride, p.x_stride,
                         end - row - i < tile_rows ? end - row - i : tile_rows, sums + i * 64);
      }
      finish_rows(p, sums, row, end - row, block, 1);
    }
  }
}

#else

/* Steps of a panel whose sums share factors; of single-level scales, `shift` times the sum of x is added. */
struct Part {
  int first, steps;
  F16 factor[2], shift[2]; /* of both halves of the rows */
};

/* 32 rows of W unfolded to words, a step opposite to each of a block of x: two columns of each row, then minimums. */
struct Panel {
  alignas(64) int16_t word[ALL_STEPS][32][2];
  Part part[SW_CODE_COLUMNS / 16];
  int parts;
};

/* The codes of 32 columns as words less `zero`, times the words of `factor` [half of the columns][half of the rows] where
 * there are any. */
template <int DTYPE, bool SCALED>
static void unfold_block(const char* at, int zero, const P16 (*factor)[2], int16_t (*to)[32][2]) {
  const char* uppers = at + lower_bytes(DTYPE);
  Planes planes;
  P16 lowest = repeated_word(zero);
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
    P16 codes[2][2];
    take_codes<DTYPE>(at, uppers, step, planes, codes);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        P16 word = minus_words(codes[half][pair], lowest);
        if (SCALED) word = times_words(word, factor[step / 4][half]);
        store_pairs((char*)to[step * 2 + pair][half * 16], word);
      }
  }
}

static void unfold_codes(int dtype, const char* at, int zero, const P16 (*factor)[2], int16_t (*to)[32][2]) {
#define SW_UNFOLD(dtype) \
  return factor ? unfold_block<dtype, true>(at, zero, factor, to) : unfold_block<dtype, false>(at, zero, factor, to)
  switch (dtype) {
    case SW_INT2: SW_UNFOLD(SW_INT2);
    case SW_INT3: SW_UNFOLD(SW_INT3);
    case SW_INT4: SW_UNFOLD(SW_INT4);
    case SW_INT5: SW_UNFOLD(SW_INT5);
    case SW_INT6: SW_UNFOLD(SW_INT6);
    case SW_IQ4: SW_UNFOLD(SW_IQ4);
    case SW_E2M1: SW_UNFOLD(SW_E2M1);
    default: SW_UNFOLD(SW_INT8);
  }
#undef SW_UNFOLD
}

/* 32 rows of W on the way from panel to panel. */
class Unfolding {
 public:
  Unfolding(const sw_weight& weight, const char* start) : w(weight), at(start) {}

  void next(Panel& to) {
    to.parts = 0;
    int end = first + BLOCKS_OF_X < blocks ? first + BLOCKS_OF_X : blocks;
    if (supers)
      of_two_levels(to, end);
    else
      of_one_level(to, end);
    first = end;
  }

 private:
  const sw_weight& w;
  const char* at;
  bool supers = sw_has_supers(w.scale_dtype);
  int blocks = (w.k + 31) / 32, group_blocks = (w.group + 31) / 32, groups = sw_has_halves(w) ? 2 : 1, zero = zero_of(w);
  int first = 0, left = 0; /* block of K that is next, and blocks that are left of its group */
  F16 scale[2][2], minimum[2][2], super[2], super_minimum[2];

  void of_two_levels(Panel& to, int end) {
    if (first % (SW_SUPER / 32) == 0) {
      at = take_supers(at, super);
      if (w.minimums) at = take_supers(at, super_minimum);
    }
    for (int block = first; block < end; ++block) {
      I16 factor[2][2], lowest[2][2];
      P16 words[2][2];
      at = take_whole_factors(at, w.scale_dtype, groups, w.minimums, factor, lowest);
      for (int half = 0; half < 2; ++half) {
        for (int part = 0; part < 2; ++part) words[part][half] = both_words(factor[part % groups][half]);
        if (!w.minimums) continue;
        I16 last = lowest[groups - 1][half];
        store_pairs((char*)to.word[SUM_STEP + block - first][half * 16], sum_words(last));
        if (groups == 2)
          store_pairs((char*)to.word[HALF_SUM_STEP + block - first][half * 16], sum_words(minus(lowest[0][half], last)));
      }
      unfold_codes(w.dtype, at, zero, words, to.word + (block - first) * 16);
      at += sw_codes_bytes(w.dtype);
    }
    add_part(to, 0, CODE_STEPS, super, nullptr);
    if (w.minimums) add_part(to, SUM_STEP, groups * BLOCKS_OF_X, super_minimum, nullptr);
  }

  void of_one_level(Panel& to, int end) {
    int start = 0; /* of a part */
    for (int block = first; block < end; ++block) {
      if (left == 0) {
        at = take_factors(at, w.scale_dtype, groups, w.minimums, scale, minimum);
        left = group_blocks;
      }
      --left;
      unfold_codes(w.dtype, at, zero, nullptr, to.word + (block - first) * 16);
      at += sw_codes_bytes(w.dtype);
      if (left > 0 && block + 1 < end) continue;
      int steps = ((block - first + 1) * 16 - start) / groups;
      for (int part = 0; part < groups; ++part, start += steps) add_part(to, start, steps, scale[part], minimum[part]);
    }
  }

  static void add_part(Panel& to, int first_step, int steps, const F16* factor, const F16* shift) {
    Part& part = to.part[to.parts++];
    part.first = first_step, part.steps = steps;
    for (int half = 0; half < 2; ++half) {
      part.factor[half] = factor[half];
      if (shift) part.shift[half] = shift[half];
    }
  }
};

/* The sum of the codes of x that are opposite to a part. */
static inline int32_t part_sum(const CodeBlock* x, const Part& part) {
  int block = part.first / 16;
  if (part.steps < 16) return half_sum(x, block, part.first % 16 / 8);
  int32_t sum = 0;
  for (int i = 0; i < part.steps / 16; ++i) sum += block_sum(x, block + i);
  return sum;
}

/* sums[M][G · 16] += x[M] · the panel's rows from 16 · `group` on, 64 floats from row to row. */
template <bool SHIFTS, int M, int G>
__attribute__((noinline)) static void panel_tile(const char* x, size_t x_stride, const Panel& panel, int group,
                                                 float* sums) {
  F16 total[M][G];
  const char* row[(M + 2) / 3]; /* see tile() */
#pragma GCC unroll 4
  for (int i = 0; i < (M + 2) / 3; ++i) row[i] = x + i * 3 * x_stride;
#define SW_BLOCK_OF(m) ((const CodeBlock*)(row[(m) / 3] + (m) % 3 * x_stride))
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) total[m][g] = zero();
  for (const Part* part = panel.part; part < panel.part + panel.parts; ++part) {
    I16 whole[M][G];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) whole[m][g] = no_whole();
    for (int step = part->first; step < part->first + part->steps; ++step) {
      P16 w[G];
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) w[g] = load_pairs((const bf16*)panel.word[step][(group + g) * 16]);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        P16 two = splat_pair((const bf16*)SW_BLOCK_OF(m)->pair[step]);
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) whole[m][g] = dot_words(whole[m][g], w[g], two);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      [[maybe_unused]] F16 of_x = SHIFTS ? splat((float)part_sum(SW_BLOCK_OF(m), *part)) : zero();
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        total[m][g] = fma(to_float(whole[m][g]), part->factor[group + g], total[m][g]);
        if (SHIFTS) total[m][g] = fma(of_x, part->shift[group + g], total[m][g]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    F16 own = splat(SW_BLOCK_OF(m)->scale);
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
      float* to = sums + m * 64 + g * 16;
      store(to, fma(total[m][g], own, load(to)));
    }
  }
#undef SW_BLOCK_OF
}

#if defined(__AVX512F__)
enum { PANEL_ROWS = 6, PANEL_GROUPS = 2 };
#elif defined(__AVX2__)
enum { PANEL_ROWS = 6, PANEL_GROUPS = 1 };
#elif defined(__aarch64__)
enum { PANEL_ROWS = 4, PANEL_GROUPS = 1 };
#else
enum { PANEL_ROWS = 2, PANEL_GROUPS = 1 };
#endif

template <bool SHIFTS>
struct PanelTiles {
  /* The tile of exactly `rows` rows, 1 to M. */
  template <int M>
  static inline void of(int rows, const char* x, size_t x_stride, const Panel& panel, float* sums) {
    if constexpr (M > 0) {
      if (rows < M) return of<M - 1>(rows, x, x_stride, panel, sums);
      for (int group = 0; group < 2; group += PANEL_GROUPS)
        panel_tile<SHIFTS, M, PANEL_GROUPS>(x, x_stride, panel, group, sums + group * 16);
    }
  }
};

/* More rows than pay for unfolding. */
static void linear_panels(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { TOGETHER = 32 }; /* tiles that share a panel */
  alignas(64) float sums[TOGETHER * PANEL_ROWS * 64];
  Panel panel;
  bool shifts = p.w.minimums && !sw_has_supers(p.w.scale_dtype);
  int tile_rows = even_tiles(row_end - row_begin, PANEL_ROWS);
  for (int block = block_begin; block < block_end; ++block)
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TOGETHER * tile_rows ? row_end : row + TOGETHER * tile_rows;
      clear_rows(sums, end - row);
      Unfolding unfolding(p.w, (const char*)p.w.at + block * sw_block_bytes(p.w));
      const char* x = (const char*)p.x + row * p.x_stride;
      for (int k = 0; k < p.w.k; k += SW_CODE_COLUMNS, x += sizeof(CodeBlock)) {
        unfolding.next(panel);
        for (int i = 0; i < end - row; i += tile_rows) {
          int count = end - row - i < tile_rows ? end - row - i : tile_rows;
          if (shifts)
            PanelTiles<true>::of<PANEL_ROWS>(count, x + i * p.x_stride, p.x_stride, panel, sums + i * 64);
          else
            PanelTiles<false>::of<PANEL_ROWS>(count, x + i * p.x_stride, p.x_stride, panel, sums + i * 64);
        }
      }
      finish_rows(p, sums, row, end - row, block, 1);
    }
}

static inline int unfold_from(const sw_weight& w) {
  if (upper_bits(w.dtype) > 0 || sw_has_halves(w)) return UNFOLD_JOINED;
  return is_table(w.dtype) || sw_has_supers(w.scale_dtype) ? UNFOLD_SCALED : UNFOLD_PLAIN;
}

static void linear_codes(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  int rows = row_end - row_begin, tile_rows = even_tiles(rows, CODE_ROWS);
  if (rows >= unfold_from(p.w)) return linear_panels(p, row_begin, row_end, block_begin, block_end);
  alignas(64) float sums[CODE_ROWS * 64];
  size_t block_bytes = sw_block_bytes(p.w);
  for (int block = block_begin; block < block_end; ++block) {
    CodeGroups w = {(const char*)p.w.at + block * block_bytes, (p.w.k + 31) / 32, (p.w.group + 31) / 32,
                    p.w.scale_dtype, zero_of(p.w), SW_PREFETCH};
    for (int row = row_begin; row < row_end; row += tile_rows) {
      int count = row_end - row < tile_rows ? row_end - row : tile_rows;
      clear_rows(sums, count);
      /* The last tile, whose own block is in the cache, fetches the next one: memory would wait for it, else. */
      if (row > row_begin) w.ahead = row + tile_rows >= row_end && block + 1 < block_end ? block_bytes : 0;
      multiply_codes(p.w, p.w.dtype, w, (const char*)p.x + row * p.x_stride, p.x_stride, count, sums);
      finish_rows(p, sums, row, count, block, 1);
    }
  }
}

#endif
