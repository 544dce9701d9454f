/* The products of kernel.inl and quantized.inl in tiles (cpu/tiles.h).
 *
 * A tile of bf16 sums 32 columns of K in an order of its own. Therefore every product of bf16 goes through tiles, that of
 * one row too: a row's result is the same alone and in a batch. Sums of integers are exact. Products of few rows stay with
 * quantized.inl, which gives the same bits. */

enum { TILE_HEIGHT = 16, TILE_DEPTH = 32 }; /* rows; columns of K in bf16 */

/* Tiles 0 and 1, and 2 and 3, sum rows of two tiles, 4 and 5, by sixteen columns each of 6 and 7, whose depth is in bytes.
 * Their shapes are set again only where they change. */
class ShapedTiles : public Tiles8 {
 public:
  inline void of(int upper_rows, int lower_rows, int bytes) {
    if (upper_rows == rows[0] && lower_rows == rows[1] && bytes == depth) return;
    rows[0] = upper_rows, rows[1] = lower_rows, depth = bytes;
    TileShapes shapes;
    for (int i = 0; i < 2; ++i)
      if (rows[i]) {
        shapes.set(2 * i, rows[i], 64), shapes.set(2 * i + 1, rows[i], 64);
        shapes.set(4 + i, rows[i], bytes);
      }
    shapes.set(6, bytes / 4, 64), shapes.set(7, bytes / 4, 64);
    shape(shapes);
  }
  inline ~ShapedTiles() {
    if (depth) release();
  }

 private:
  int rows[2] = {}, depth = 0;
};

/* out[rows][32] (+)= x · w over `columns` of K, which are whole tiles or less than one; rows <= 32. */
static void multiply_tiles(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, int columns,
                           float* out, size_t out_stride, bool resume) {
  enum { LINE = 128 }; /* bytes of a pair of columns of a packed block */
  int bytes = columns < TILE_DEPTH ? (columns + 1) / 2 * 4 : TILE_DEPTH * 2;
  bool second = rows > TILE_HEIGHT;
  size_t to = out_stride * 4, from = x_stride * 2;
  float* below = out + TILE_HEIGHT * out_stride;
  t.of(second ? TILE_HEIGHT : rows, second ? rows - TILE_HEIGHT : 0, bytes);
  if (resume) {
    t.load<0>(out, to), t.load<1>(out + 16, to);
    if (second) t.load<2>(below, to), t.load<3>(below + 16, to);
  } else {
    t.clear<0>(), t.clear<1>();
    if (second) t.clear<2>(), t.clear<3>();
  }
  for (int k = 0; k < columns; k += TILE_DEPTH, x += TILE_DEPTH, w += TILE_DEPTH * 32) {
    t.load<6>(w, LINE), t.load<7>(w + 32, LINE);
    t.load<4>(x, from);
    t.add_bf16<0, 4, 6>(), t.add_bf16<1, 4, 7>();
    if (second) {
      t.load<5>(x + TILE_HEIGHT * x_stride, from);
      t.add_bf16<2, 5, 6>(), t.add_bf16<3, 5, 7>();
    }
  }
  t.store<0>(out, to), t.store<1>(out + 16, to);
  if (second) t.store<2>(below, to), t.store<3>(below + 16, to);
}

static void linear_tiles(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { HEIGHT = 2 * TILE_HEIGHT, TOGETHER = 4, PANEL_COLUMNS = 512 }; /* of 32 columns: 32 KiB */
  alignas(64) float sums[TOGETHER * HEIGHT * 64];
  ShapedTiles t;
  size_t block_size = (size_t)(p.w.k + 1) / 2 * 64;
  int whole = p.w.k / TILE_DEPTH * TILE_DEPTH, panel = row_end - row_begin > HEIGHT ? PANEL_COLUMNS : whole;
  for (int block = block_begin; block < block_end; ++block) {
    const bf16* w = (const bf16*)p.w.at + block * block_size;
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TOGETHER * HEIGHT ? row_end : row + TOGETHER * HEIGHT;
      for (int first = 0, count; first < p.w.k; first += count) {
        count = first == whole ? p.w.k - whole : whole - first < panel ? whole - first : panel;
        for (int i = 0; i < end - row; i += HEIGHT)
          multiply_tiles(t, (const bf16*)p.x + (size_t)(row + i) * p.x_stride + first, p.x_stride,
                         end - row - i < HEIGHT ? end - row - i : HEIGHT, w + (size_t)first * 32, count, sums + i * 64, 64,
                         first > 0);
      }
      finish_rows(p, sums, row, end - row, block, 1);
    }
  }
}

/* Of a tile's rows: the codes of 32 columns, their upper bytes and their lower ones, in the order of a packed step. */
struct SplitCodes {
  int8_t upper[TILE_HEIGHT][32];
  uint8_t lower[TILE_HEIGHT][32];
};

/* 128 columns of 32 rows of W: codes in bytes, as those of 8 bits stand, and what multiplies their sums, each for [32
 * columns][half of them][half of the rows]. */
struct BytePanel {
  alignas(64) char codes[BLOCKS_OF_X][1024];
  bool ends[BLOCKS_OF_X]; /* whether a part ends with these 32 columns */
  F16 scale[BLOCKS_OF_X][2][2], minimum[BLOCKS_OF_X][2][2];
  I16 factor[BLOCKS_OF_X][2][2], lowest[BLOCKS_OF_X][2][2]; /* of two levels the first */
  F16 super[2], super_minimum[2];
};

/* 32 rows of W on the way from panel to panel. */
struct Widening {
  const char* at;
  BytePanel panel; /* the last one */

  /* `blocks` of 32 columns, of which the first is block `first` of K. */
  void next(const sw_weight& w, int first, int blocks) {
    int groups = sw_has_halves(w) ? 2 : 1, group_blocks = (w.group + 31) / 32;
    bool supers = sw_has_supers(w.scale_dtype);
    if (supers && first % (SW_SUPER / 32) == 0) {
      at = take_supers(at, panel.super);
      if (w.minimums) at = take_supers(at, panel.super_minimum);
    }
    for (int i = 0; i < blocks; ++i) {
      int before = i ? i - 1 : BLOCKS_OF_X - 1;
      if (supers) {
        at = take_whole_factors(at, w.scale_dtype, groups, w.minimums, panel.factor[i], panel.lowest[i]);
      } else if ((first + i) % group_blocks == 0) {
        at = take_factors(at, w.scale_dtype, groups, w.minimums, panel.scale[i], panel.minimum[i]);
      } else {
        memcpy(panel.scale[i], panel.scale[before], sizeof(panel.scale[i]));
        memcpy(panel.minimum[i], panel.minimum[before], sizeof(panel.minimum[i]));
      }
      panel.ends[i] = i + 1 == blocks || (first + i + 1) % group_blocks == 0;
      widen_codes(w.dtype, at, panel.codes[i]);
      at += sw_codes_bytes(w.dtype);
    }
  }
};

/* What a tile's rows have of a block of x: sums in the order of quantized.inl. */
struct TiledSums {
  I16 whole[TILE_HEIGHT][2], least[TILE_HEIGHT][2];
  int32_t of_x[TILE_HEIGHT];
  F16 total[TILE_HEIGHT][2];
};

/* sums[rows][32] += x · w over a panel, 64 floats from row to row; rows <= 16. */
static void multiply_split(ShapedTiles& t, const sw_weight& w, const BytePanel& panel, const char* x, size_t x_stride,
                           const SplitCodes* split, int rows, int blocks, float* sums) {
  alignas(64) int32_t products[4][TILE_HEIGHT][16]; /* upper bytes by the first and the second rows of W, lower bytes */
  TiledSums s = {};
  int halves = sw_has_halves(w) ? 2 : 1, code_of_0 = zero_of(w);
  bool supers = sw_has_supers(w.scale_dtype);
  t.of(rows, rows, 32 / halves);
  for (int i = 0; i < blocks; ++i)
    for (int half = 0; half < halves; ++half) {
      const char* codes = panel.codes[i] + half * 512;
      t.load<4>(split[i].upper[0] + half * 16, 32), t.load<5>(split[i].lower[0] + half * 16, 32);
      t.load<6>(codes, 128), t.load<7>(codes + 64, 128);
      t.clear<0>(), t.clear<1>(), t.clear<2>(), t.clear<3>();
      t.add_signed_bytes<0, 4, 6>(), t.add_signed_bytes<1, 4, 7>();
      t.add_bytes<2, 5, 6>(), t.add_bytes<3, 5, 7>();
      t.store<0>(products[0], 64), t.store<1>(products[1], 64), t.store<2>(products[2], 64), t.store<3>(products[3], 64);
      for (int m = 0; m < rows; ++m) {
        const CodeBlock* from = (const CodeBlock*)(x + m * x_stride);
        int32_t of_x = halves == 2 ? half_sum(from, i, half) : block_sum(from, i);
        s.of_x[m] += of_x;
        for (int group = 0; group < 2; ++group) {
          I16 exact = joined_words(products[group][m], products[2 + group][m], -code_of_0 * of_x);
          if (supers) {
            s.whole[m][group] = plus(s.whole[m][group], times(exact, panel.factor[i][half][group]));
            if (w.minimums) {
              I16 of_lowest = splat_whole(&of_x);
              s.least[m][group] = plus(s.least[m][group], times(of_lowest, panel.lowest[i][half][group]));
            }
            continue;
          }
          s.whole[m][group] = plus(s.whole[m][group], exact);
          if (halves == 1 && !panel.ends[i]) continue;
          F16& total = s.total[m][group];
          total = fma(to_float(s.whole[m][group]), panel.scale[i][half][group], total);
          if (w.minimums) total = fma(splat((float)s.of_x[m]), panel.minimum[i][half][group], total);
          s.whole[m][group] = no_whole();
        }
        if (halves == 2 || panel.ends[i]) s.of_x[m] = 0;
      }
    }
  for (int m = 0; m < rows; ++m) {
    F16 own = splat(((const CodeBlock*)(x + m * x_stride))->scale);
    for (int group = 0; group < 2; ++group) {
      F16& total = s.total[m][group];
      if (supers) total = fma(to_float(s.whole[m][group]), panel.super[group], zero());
      if (supers && w.minimums) total = fma(to_float(s.least[m][group]), panel.super_minimum[group], total);
      float* to = sums + m * 64 + group * 16;
      store(to, fma(total, own, load(to)));
    }
  }
}

static void linear_split(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { TOGETHER = 4, BLOCKS = 4 }; /* tiles of rows, and blocks of W, that share what is split and widened */
  alignas(64) float sums[BLOCKS][TOGETHER * TILE_HEIGHT * 64];
  alignas(64) SplitCodes split[TOGETHER][BLOCKS_OF_X];
  alignas(64) Widening widening[BLOCKS];
  ShapedTiles t;
  int blocks = (p.w.k + 31) / 32;
  for (int block = block_begin; block < block_end; block += BLOCKS) {
    int together = block_end - block < BLOCKS ? block_end - block : BLOCKS;
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TOGETHER * TILE_HEIGHT ? row_end : row + TOGETHER * TILE_HEIGHT;
      int rows = end - row, tile_rows = even_tiles(rows, TILE_HEIGHT);
      for (int b = 0; b < together; ++b) {
        widening[b].at = (const char*)p.w.at + (block + b) * sw_block_bytes(p.w);
        clear_rows(sums[b], rows);
      }
      const char* x = (const char*)p.x + (size_t)row * p.x_stride;
      for (int first = 0; first < blocks; first += BLOCKS_OF_X, x += sizeof(CodeBlock)) {
        int count = blocks - first < BLOCKS_OF_X ? blocks - first : int(BLOCKS_OF_X);
        for (int m = 0; m < rows; ++m)
          for (int i = 0; i < count; ++i) {
            SplitCodes& to = split[m / tile_rows][i];
            const CodeBlock* from = (const CodeBlock*)(x + m * p.x_stride);
            split_words(from->pair[i * 16], to.upper[m % tile_rows], to.lower[m % tile_rows]);
          }
        for (int b = 0; b < together; ++b) {
          widening[b].next(p.w, first, count);
          for (int m = 0; m < rows; m += tile_rows)
            multiply_split(t, p.w, widening[b].panel, x + m * p.x_stride, p.x_stride, split[m / tile_rows],
                           rows - m < tile_rows ? rows - m : tile_rows, count, sums[b] + m * 64);
        }
      }
      for (int b = 0; b < together; ++b) finish_rows(p, sums[b], row, rows, block + b, 1);
    }
  }
}

enum { SPLIT_FROM = 16 }; /* rows from which on integers go through tiles */

static void linear_tiled(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  if (p.w.dtype == SW_BF16)
    linear_tiles(p, row_begin, row_end, block_begin, block_end);
  else if (sw_is_integers(p.w.dtype) && row_end - row_begin >= SPLIT_FROM)
    linear_split(p, row_begin, row_end, block_begin, block_end);
  else
    linear(p, row_begin, row_end, block_begin, block_end);
}
