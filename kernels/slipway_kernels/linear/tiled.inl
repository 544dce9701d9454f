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

/* out[rows][32] (+)= x · w over `columns` of K, which are whole tiles or less than one, 64 floats from row to row; rows
 * are at most 16, or at most 32 where there is a second tile of them. */
template <bool SECOND>
static void multiply_tiles(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, int columns,
                           float* out, bool resume) {
  enum { LINE = 128, TO = 64 * 4 }; /* bytes of a pair of columns of a packed block, and of a row of sums */
  int bytes = columns < TILE_DEPTH ? (columns + 1) / 2 * 4 : TILE_DEPTH * 2;
  size_t from = x_stride * 2;
  float* below = out + TILE_HEIGHT * 64;
  t.of(SECOND ? TILE_HEIGHT : rows, SECOND ? rows - TILE_HEIGHT : 0, bytes);
  if (resume) {
    t.load<0>(out, TO), t.load<1>(out + 16, TO);
    if (SECOND) t.load<2>(below, TO), t.load<3>(below + 16, TO);
  } else {
    t.clear<0>(), t.clear<1>();
    if (SECOND) t.clear<2>(), t.clear<3>();
  }
  for (int k = 0; k < columns; k += TILE_DEPTH, x += TILE_DEPTH, w += TILE_DEPTH * 32) {
    /* Few rows wait for memory: the second-level cache fetches more at a time than the first. */
    for (int line = 0; !SECOND && line < 2 * TILE_HEIGHT; ++line)
      __builtin_prefetch((const char*)w + 2 * SW_PREFETCH + line * 64, 0, 2);
    t.load<6>(w, LINE), t.load<4>(x, from);
    t.add_bf16<0, 4, 6>();
    t.load<7>(w + 32, LINE);
    t.add_bf16<1, 4, 7>();
    if (SECOND) {
      t.load<5>(x + TILE_HEIGHT * x_stride, from);
      t.add_bf16<2, 5, 6>(), t.add_bf16<3, 5, 7>();
    }
  }
  t.store<0>(out, TO), t.store<1>(out + 16, TO);
  if (SECOND) t.store<2>(below, TO), t.store<3>(below + 16, TO);
}

static inline void multiply_height(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, int columns,
                                   float* out, bool resume) {
  if (rows > TILE_HEIGHT)
    multiply_tiles<true>(t, x, x_stride, rows, w, columns, out, resume);
  else
    multiply_tiles<false>(t, x, x_stride, rows, w, columns, out, resume);
}

/* The order of the loops changes no sum. Of a part of the rows, columns stay in the second-level cache while four blocks
 * of W pass by: all of them, or a panel where K is long. Without parts, one thread (2 MiB of that cache) multiplies 512 rows
 * at 60 % of the rate. */
static void linear_tiles(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { HEIGHT = 2 * TILE_HEIGHT, PART = 8 * HEIGHT, BLOCKS = 4, LONG = 2048, PANEL = 256 };
  alignas(64) float sums[BLOCKS / 2][PART * 64];
  ShapedTiles t;
  size_t block_size = (size_t)(p.w.k + 1) / 2 * 64;
  int whole = p.w.k / TILE_DEPTH * TILE_DEPTH, rows = row_end - row_begin;
  int panel = rows > HEIGHT && whole > LONG ? int(PANEL) : whole;
  int part = (even_tiles(rows, PART) + HEIGHT - 1) / HEIGHT * HEIGHT;
  for (int row = row_begin, end; row < row_end; row = end) {
    end = row_end - row < part ? row_end : row + part;
    for (int block = block_begin, blocks; block < block_end; block += blocks) {
      blocks = block_end - block < BLOCKS ? block_end - block : int(BLOCKS);
      for (int first = 0, count; first < p.w.k; first += count) {
        count = first == whole ? p.w.k - whole : whole - first < panel ? whole - first : panel;
        for (int at = row; at < end; at += HEIGHT)
          for (int b = 0; b < blocks; ++b) {
            const bf16* x = (const bf16*)p.x + at * p.x_stride + first;
            const bf16* w = (const bf16*)p.w.at + (block + b) * block_size + (size_t)first * 32;
            float* to = sums[b / 2] + (at - row) * 64 + b % 2 * 32;
            multiply_height(t, x, p.x_stride, end - at < HEIGHT ? end - at : int(HEIGHT), w, count, to, first > 0);
          }
      }
      for (int b = 0; b < blocks; b += 2) finish_rows(p, sums[b / 2], row, end - row, block + b, blocks - b < 2 ? 1 : 2);
    }
  }
}

/* What is widened of e4m3 (narrow.inl), in tiles. */
struct NarrowTiles {
  enum { ROWS_AT_ONCE = 2 * TILE_HEIGHT };
  ShapedTiles t;

  inline void multiply_rows(const bf16* x, size_t stride, int rows, const bf16* w, int columns, float* out, bool resume) {
    int whole = columns / TILE_DEPTH * TILE_DEPTH;
    if (whole) multiply_some(x, stride, rows, w, whole, out, resume);
    if (whole < columns) multiply_some(x + whole, stride, rows, w + whole * 32, columns - whole, out, resume || whole);
  }

 private:
  inline void multiply_some(const bf16* x, size_t stride, int rows, const bf16* w, int columns, float* out, bool resume) {
    for (int i = 0, count; i < rows; i += count) {
      count = rows - i < ROWS_AT_ONCE ? rows - i : int(ROWS_AT_ONCE);
      multiply_height(t, x + i * stride, stride, count, w, columns, out + i * 64, resume);
    }
  }
};

/* The bytes of a panel's words (unfolded.inl): [half of the rows][four columns][16 rows][4], the columns of each four in the
 * order of split_words. A word of two bytes is 256 times the upper one, which has a sign, and the lower one; of one byte it
 * is the lower one, with a sign. */
struct BytePanel {
  alignas(64) char lower[2][SW_CODE_COLUMNS / 4][64], upper[2][SW_CODE_COLUMNS / 4][64];
};

template <bool WIDE>
static void take_bytes(const Panel& panel, int steps, BytePanel& to) {
  for (int step = 0; step < steps; step += 2)
    for (int half = 0; half < 2; ++half) {
      P16 first = load_pairs((const bf16*)panel.word[step][half * 16]);
      P16 second = load_pairs((const bf16*)panel.word[step + 1][half * 16]);
      store_pairs(to.lower[half][step / 2], with_odd_bytes(field<0, 8>(first), field<0, 8>(second)));
      if (WIDE) store_pairs(to.upper[half][step / 2], with_odd_bytes(field<8, 8>(first), field<8, 8>(second)));
    }
}

static inline float float_sum(const CodeBlock* x, const Part& part) {
  int block = part.first / 16;
  if (part.steps < 16) return (float)half_sum(x, block, part.first % 16 / 8);
  float sum = x->sum[block];
  for (int i = 1; i < part.steps / 16; ++i) sum += x->sum[block + i];
  return sum;
}

/* made[][rows of x][16] of a part's columns. Of words of one byte it has those of both halves of W by the upper bytes of x, then
 * by the lower ones. Of two bytes it has one half: upper by upper, upper by lower and lower by upper, lower by lower. */
typedef int32_t ByteSums[4][TILE_HEIGHT][16];

template <bool WIDE>
static inline void multiply_part(ShapedTiles& t, const BytePanel& w, int half, const Part& part, int depth,
                                 const CodeBlock* x, size_t x_stride, ByteSums& made) {
  int first = part.first * 2, end = first + part.steps * 2;
  t.clear<0>(), t.clear<1>(), t.clear<2>();
  if (!WIDE) t.clear<3>();
  for (int k = first; k < end; k += depth) {
    t.load<4>(x->upper + k, x_stride), t.load<5>(x->lower + k, x_stride);
    if (WIDE) {
      t.load<6>(w.upper[half][k / 4], 64), t.load<7>(w.lower[half][k / 4], 64);
      t.add_bytes<1, 4, 7, int8_t, uint8_t>(), t.add_bytes<0, 4, 6, int8_t, int8_t>();
      t.add_bytes<2, 5, 7, uint8_t, uint8_t>(), t.add_bytes<1, 5, 6, uint8_t, int8_t>();
    } else {
      t.load<6>(w.lower[0][k / 4], 64), t.load<7>(w.lower[1][k / 4], 64);
      t.add_bytes<0, 4, 6, int8_t, int8_t>(), t.add_bytes<1, 4, 7, int8_t, int8_t>();
      t.add_bytes<2, 5, 6, uint8_t, int8_t>(), t.add_bytes<3, 5, 7, uint8_t, int8_t>();
    }
  }
  t.store<0>(made[0], 64), t.store<1>(made[1], 64), t.store<2>(made[2], 64);
  if (!WIDE) t.store<3>(made[3], 64);
}

/* sums[rows][32] += x · the panel's rows, 64 floats from row to row; rows <= 16. The floats are panel_tile's.
 * SHIFTS: how minimums are added, of one level by parts, of two by so many steps of sums; 0 without. */
template <bool WIDE, int SHIFTS>
static void multiply_bytes(ShapedTiles& t, const Panel& panel, const BytePanel& bytes, int depth, const char* x,
                           size_t x_stride, int rows, float* sums) {
  alignas(64) ByteSums made;
  F16 total[TILE_HEIGHT][2];
  auto block = [&](int m) { return (const CodeBlock*)(x + m * x_stride); };
  auto finish = [&](int m, int half, F16 sum) {
    float* to = sums + m * 64 + half * 16;
    store(to, fma(sum, splat(block(m)->scale), load(to)));
  };
  t.of(rows, rows, depth);
  if constexpr (WIDE) {
    for (int half = 0; half < 2; ++half) {
      multiply_part<WIDE>(t, bytes, half, panel.part[0], depth, block(0), x_stride, made);
      P16 least[SHIFTS + 1];
      for (int i = 0; i < SHIFTS; ++i) least[i] = load_pairs((const bf16*)panel.word[SUM_STEP + i][half * 16]);
      F16 super = panel.part[0].factor[half], super_minimum = SHIFTS ? panel.part[1].factor[half] : zero();
      for (int m = 0; m < rows; ++m) {
        I16 whole = with_byte(with_byte(load_sums(made[0][m]), load_sums(made[1][m])), load_sums(made[2][m]));
        F16 sum = fma(to_float(whole), super, zero());
        if (SHIFTS) { /* few columns, as panel_tile has them */
          whole = no_whole();
#pragma GCC unroll 8
          for (int i = 0; i < SHIFTS; ++i)
            whole = dot_words(whole, least[i], splat_pair((const bf16*)block(m)->pair[SUM_STEP + i]));
          sum = fma(to_float(whole), super_minimum, sum);
        }
        finish(m, half, sum);
      }
    }
  } else {
    for (int i = 0; i < panel.parts; ++i) {
      const Part& part = panel.part[i];
      bool first = i == 0, last = i + 1 == panel.parts;
      multiply_part<WIDE>(t, bytes, 0, part, depth, block(0), x_stride, made);
      F16 factor[2] = {part.factor[0], part.factor[1]}, shift[2] = {part.shift[0], part.shift[1]};
      for (int m = 0; m < rows; ++m) {
        [[maybe_unused]] F16 of_x = SHIFTS ? splat(float_sum(block(m), part)) : zero();
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          I16 whole = with_byte(load_sums(made[half][m]), load_sums(made[2 + half][m]));
          F16 sum = fma(to_float(whole), factor[half], first ? zero() : total[m][half]);
          if (SHIFTS) sum = fma(of_x, shift[half], sum);
          if (last)
            finish(m, half, sum);
          else
            total[m][half] = sum;
        }
      }
    }
  }
}

/* Columns of a tile of bytes, of which every part has a multiple: x is 0 behind its last one. */
static inline int byte_depth(const sw_weight& w) {
  if (sw_has_supers(w.scale_dtype)) return 64;
  return sw_has_halves(w) ? 16 : w.group % 64 == 0 || w.group >= w.k ? 64 : 32;
}

template <bool WIDE, int SHIFTS>
static void linear_bytes(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { MOST = 16 * TILE_HEIGHT, LEAST = 4 * TILE_HEIGHT, CACHED = 5 << 18 }; /* rows that share a panel; bytes of these */
  alignas(64) float sums[MOST * 64];
  alignas(64) Panel panel;
  alignas(64) BytePanel bytes;
  ShapedTiles t;
  int most = (int)(CACHED / p.x_stride) / TILE_HEIGHT * TILE_HEIGHT;
  int part = even_tiles(row_end - row_begin, most < LEAST ? int(LEAST) : most > MOST ? int(MOST) : most);
  int tile_rows = even_tiles(part, TILE_HEIGHT), depth = byte_depth(p.w);
  for (int row = row_begin, end; row < row_end; row = end) {
    end = row_end - row < part ? row_end : row + part;
    for (int block = block_begin; block < block_end; ++block) {
      Unfolding unfolding(p.w, (const char*)p.w.at + block * sw_block_bytes(p.w));
      clear_rows(sums, end - row);
      const char* x = (const char*)p.x + (size_t)row * p.x_stride;
      for (int k = 0; k < p.w.k; k += SW_CODE_COLUMNS, x += sizeof(CodeBlock)) {
        int steps = p.w.k - k < SW_CODE_COLUMNS ? (p.w.k - k + 31) / 32 * 16 : int(CODE_STEPS);
        unfolding.next(panel);
        take_bytes<WIDE>(panel, steps, bytes);
        for (int i = 0; i < end - row; i += tile_rows)
          multiply_bytes<WIDE, SHIFTS>(t, panel, bytes, depth, x + i * p.x_stride, p.x_stride,
                                       end - row - i < tile_rows ? end - row - i : tile_rows, sums + i * 64);
      }
      finish_rows(p, sums, row, end - row, block, 1);
    }
  }
}

static inline auto byte_product(const sw_weight& w) {
  if (!sw_has_supers(w.scale_dtype)) return w.minimums ? linear_bytes<false, 1> : linear_bytes<false, 0>;
  if (!w.minimums) return linear_bytes<true, 0>;
  return sw_has_halves(w) ? linear_bytes<true, 2 * BLOCKS_OF_X> : linear_bytes<true, BLOCKS_OF_X>;
}

/* Rows from which on tiles are faster with integers than the vectors of quantized.inl, which hold eight rows (measured on
 * family 6, model 167). */
static inline int bytes_from(const sw_weight& w) {
  return w.minimums && !sw_has_supers(w.scale_dtype) && w.group <= 32 ? 16 : 10;
}

static void linear_tiled(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  if (p.w.dtype == SW_BF16)
    linear_tiles(p, row_begin, row_end, block_begin, block_end);
  else if (p.w.dtype == SW_E4M3)
    linear_narrow<NarrowTiles>(p, row_begin, row_end, block_begin, block_end);
  else if (!sw_is_integers(p.w.dtype) || row_end - row_begin < bytes_from(p.w))
    linear(p, row_begin, row_end, block_begin, block_end);
  else
    byte_product(p.w)(p, row_begin, row_end, block_begin, block_end);
}
