/* The products of kernel.inl and quantized.inl in tiles (cpu/tiles.h).
 *
 * A tile of bf16 sums 32 columns of K in an order of its own. Every product of bf16 keeps that order, that of one row too: a
 * row's result is the same alone and in a batch. Sums of integers are exact. Their products of few rows stay with
 * quantized.inl, which gives the same bits. */

enum { TILE_HEIGHT = 16, TILE_DEPTH = 32, FEW_ROWS = 4 }; /* rows; columns of K in bf16 */

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

/* What a product does while tiles multiply, a little after each depth of them. */
struct Nothing {
  inline void step() {}
};

/* out[rows][32] (+)= x · w over `columns` of K, which are whole tiles or less than one, 64 floats from row to row; rows
 * are at most 16, or at most 32 where there is a second tile of them. */
template <bool SECOND, class Between>
static inline void multiply_tiles(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, int columns,
                                  float* out, bool resume, Between& between) {
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
    t.load<6>(w, LINE), t.load<4>(x, from);
    t.add_bf16<0, 4, 6>();
    t.load<7>(w + 32, LINE);
    t.add_bf16<1, 4, 7>();
    if (SECOND) {
      t.load<5>(x + TILE_HEIGHT * x_stride, from);
      t.add_bf16<2, 5, 6>(), t.add_bf16<3, 5, 7>();
    }
    between.step();
  }
  t.store<0>(out, TO), t.store<1>(out + 16, TO);
  if (SECOND) t.store<2>(below, TO), t.store<3>(below + 16, TO);
}

template <class Between>
static inline void multiply_height(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, int columns,
                                   float* out, bool resume, Between& between) {
  if (rows > TILE_HEIGHT)
    multiply_tiles<true>(t, x, x_stride, rows, w, columns, out, resume, between);
  else
    multiply_tiles<false>(t, x, x_stride, rows, w, columns, out, resume, between);
}

/* out[M][32] += x · w over at most sixteen pairs of columns, by vectors in the order of a tile. */
template <int M>
static inline void add_depth(const bf16* x, size_t x_stride, const bf16* w, int pairs, float* out) {
  F16 even[M][2], odd[M][2];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) even[m][0] = even[m][1] = odd[m][0] = odd[m][1] = zero();
  for (int i = 0; i < pairs; ++i, x += 2, w += 64) {
    P16 columns[2] = {load_pairs(w), load_pairs(w + 32)};
    for (int half = 0; half < 2; ++half) __builtin_prefetch((const char*)(w + half * 32) + SW_PREFETCH);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      P16 pair = splat_pair_again(x + m * x_stride);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        even[m][half] = fma(low_half(pair), low_half(columns[half]), even[m][half]);
        odd[m][half] = fma(high_half(pair), high_half(columns[half]), odd[m][half]);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* to = out + m * 64 + half * 16;
      store(to, load(to) + (even[m][half] + odd[m][half]));
    }
}

/* At most four rows wait for memory. Vectors read it a fifth faster than tiles do, where several blocks of W are read side
 * by side (family 6, model 167). */
static void linear_few(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { BLOCKS = 4 };
  alignas(64) float sums[BLOCKS / 2][FEW_ROWS * 64];
  int rows = row_end - row_begin;
  auto add = rows == 1 ? add_depth<1> : rows == 2 ? add_depth<2> : rows == 3 ? add_depth<3> : add_depth<FEW_ROWS>;
  size_t block_size = (size_t)(p.w.k + 1) / 2 * 64;
  const bf16* x = (const bf16*)p.x + row_begin * p.x_stride;
  for (int block = block_begin, blocks; block < block_end; block += blocks) {
    blocks = block_end - block < BLOCKS ? block_end - block : int(BLOCKS);
    const bf16* w = (const bf16*)p.w.at + block * block_size;
    memset(sums, 0, sizeof(sums));
    {
      WithoutSubnormals as_in_tiles;
      for (int k = 0; k < p.w.k; k += TILE_DEPTH) {
        int pairs = p.w.k - k < TILE_DEPTH ? (p.w.k - k + 1) / 2 : TILE_DEPTH / 2;
        for (int b = 0; b < blocks; ++b)
          add(x + k, p.x_stride, w + b * block_size + (size_t)k * 32, pairs, sums[b / 2] + b % 2 * 32);
      }
    }
    for (int b = 0; b < blocks; b += 2) finish_rows(p, sums[b / 2], row_begin, rows, block + b, blocks - b < 2 ? 1 : 2);
  }
}

/* A vector that is read comes earlier than a line that is prefetched, and lets the processor fetch those behind it. */
static inline void read_ahead(const bf16* at, int count, const bf16* end) {
  if (at + count <= end)
    for (int i = 0; i < count; i += 32) read_line(at + i);
}

/* out[rows][64] (+)= x · w of two blocks, `block_size` apart, rows <= 16; no line of W behind `end` is read. */
static void multiply_beside(ShapedTiles& t, const bf16* x, size_t x_stride, int rows, const bf16* w, size_t block_size,
                            int columns, float* out, bool resume, const bf16* end) {
  enum { LINE = 128, TO = 64 * 4, DEPTH = TILE_DEPTH * 32, AHEAD = DEPTH }; /* elements of W */
  int bytes = columns < TILE_DEPTH ? (columns + 1) / 2 * 4 : TILE_DEPTH * 2;
  t.of(rows, rows, bytes);
  if (resume)
    t.load<0>(out, TO), t.load<1>(out + 16, TO), t.load<2>(out + 32, TO), t.load<3>(out + 48, TO);
  else
    t.clear<0>(), t.clear<1>(), t.clear<2>(), t.clear<3>();
  for (int k = 0; k < columns; k += TILE_DEPTH, x += TILE_DEPTH, w += DEPTH) {
    const bf16* beside = w + block_size;
    read_ahead(w + AHEAD, DEPTH, end), read_ahead(beside + AHEAD, DEPTH, end);
    t.load<4>(x, x_stride * 2);
    t.load<6>(w, LINE), t.add_bf16<0, 4, 6>();
    t.load<7>(w + 32, LINE), t.add_bf16<1, 4, 7>();
    t.load<6>(beside, LINE), t.add_bf16<2, 4, 6>();
    t.load<7>(beside + 32, LINE), t.add_bf16<3, 4, 7>();
  }
  t.store<0>(out, TO), t.store<1>(out + 16, TO), t.store<2>(out + 32, TO), t.store<3>(out + 48, TO);
}

/* At most sixteen rows wait for memory, too. */
static void linear_low(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  alignas(64) float sums[TILE_HEIGHT * 64];
  ShapedTiles t;
  Nothing nothing;
  int rows = row_end - row_begin, whole = p.w.k / TILE_DEPTH * TILE_DEPTH;
  size_t block_size = (size_t)(p.w.k + 1) / 2 * 64;
  const bf16 *x = (const bf16*)p.x + row_begin * p.x_stride, *all = (const bf16*)p.w.at;
  const bf16* end = all + block_end * block_size;
  for (int block = block_begin; block < block_end; block += 2) {
    const bf16* w = all + block * block_size;
    bool two = block_end - block > 1;
    for (int first = 0, count; first < p.w.k; first += count) {
      count = first < whole ? whole : p.w.k - whole;
      const bf16* at = w + (size_t)first * 32;
      if (two)
        multiply_beside(t, x + first, p.x_stride, rows, at, block_size, count, sums, first > 0, end);
      else
        multiply_tiles<false>(t, x + first, p.x_stride, rows, at, count, sums, first > 0, nothing);
    }
    finish_rows(p, sums, row_begin, rows, block, two ? 2 : 1);
  }
}

/* Finishes the tile of sums before, and fetches the next block of W, while tiles multiply. */
class Beside {
 public:
  inline explicit Beside(const Product& p) : p(p) {}
  inline ~Beside() { finish(rows); }

  /* The sums of a tile are complete. The next tile takes at least so many steps; 0 is one that is not a whole depth. */
  inline void finish_next(const float* of, int first_row, int num_rows, int of_block, int steps) {
    finish(rows);
    sums = of, row = first_row, rows = num_rows, block = of_block;
    rows_a_step = steps > 1 ? (num_rows + steps - 1) / steps : num_rows;
  }
  inline void fetch(const void* from, size_t bytes, int steps) {
    next = (const char*)from, end = next + bytes;
    bytes_a_step = steps ? (bytes / steps + 63) / 64 * 64 : 0;
  }
  inline void step() {
    if (rows) finish(rows < rows_a_step ? rows : rows_a_step);
    for (const char* until = next + bytes_a_step; next < until && next < end; next += 64) __builtin_prefetch(next, 0, 2);
  }

 private:
  const Product& p;
  const float* sums = nullptr;
  const char *next = nullptr, *end = nullptr;
  size_t bytes_a_step = 0;
  int row = 0, rows = 0, block = 0, rows_a_step = 0;

  inline void finish(int count) {
    if (!count) return;
    finish_rows(p, sums, row, count, block, 1);
    sums += count * 64, row += count, rows -= count;
  }
};

/* The order of the loops changes no sum. Columns of a part of the rows stay in the second-level cache while W passes by:
 * all of them and one block, or where K is long a panel and four blocks. One block's panel stays in the first-level cache
 * while the rows pass by. */
static void linear_tiles(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { HEIGHT = 2 * TILE_HEIGHT, LONG = 2048, WHOLE = 640, PANEL = 256, CACHED = 1 << 20, MOST = 512 };
  alignas(64) float sums[MOST * 64];
  ShapedTiles t;
  size_t block_size = (size_t)(p.w.k + 1) / 2 * 64;
  int whole = p.w.k / TILE_DEPTH * TILE_DEPTH, rows = row_end - row_begin, group = whole > LONG ? 4 : 1;
  int panel = rows <= HEIGHT || whole <= WHOLE ? whole : int(PANEL);
  int most = group > 1 ? MOST / 2 : CACHED / 2 / p.w.k < MOST ? CACHED / 2 / p.w.k : int(MOST);
  int part = (even_tiles(rows, most / HEIGHT * HEIGHT) + HEIGHT - 1) / HEIGHT * HEIGHT;
  int kept = panel < p.w.k ? part : 2 * HEIGHT; /* rows of sums */
  Beside beside(p);
  for (int row = row_begin, end; row < row_end; row = end) {
    end = row_end - row < part ? row_end : row + part;
    for (int block = block_begin, blocks; block < block_end; block += blocks) {
      blocks = block_end - block < group ? block_end - block : group;
      if (group == 1) {
        int next = block + 1 < block_end ? block + 1 : end < row_end ? block_begin : block_begin + p.next_unit;
        bool there = next != block && next < (p.n + 31) / 32;
        int steps = (end - row + HEIGHT - 1) / HEIGHT * (whole / TILE_DEPTH);
        beside.fetch((const bf16*)p.w.at + next * block_size, there ? block_size * 2 : 0, steps);
      }
      for (int first = 0, count; first < p.w.k; first += count) {
        count = first == whole ? p.w.k - whole : whole - first < panel ? whole - first : panel;
        for (int at = row; at < end; at += HEIGHT)
          for (int b = 0; b < blocks; ++b) {
            const bf16* x = (const bf16*)p.x + at * p.x_stride + first;
            const bf16* w = (const bf16*)p.w.at + (block + b) * block_size + (size_t)first * 32;
            float* to = sums + b / 2 * (MOST / 2 * 64) + (at - row) % kept * 64 + b % 2 * 32;
            int high = end - at < HEIGHT ? end - at : int(HEIGHT);
            multiply_height(t, x, p.x_stride, high, w, count, to, first > 0, beside);
            if (first + count == p.w.k) beside.finish_next(to, at, high, block + b, count / TILE_DEPTH);
          }
      }
    }
  }
}

/* What is widened of e4m3 (narrow.inl), in tiles. */
struct NarrowTiles {
  enum { ROWS_AT_ONCE = 2 * TILE_HEIGHT };
  ShapedTiles t;
  Nothing nothing;

  inline void multiply_rows(const bf16* x, size_t stride, int rows, const bf16* w, int columns, float* out, bool resume) {
    int whole = columns / TILE_DEPTH * TILE_DEPTH;
    if (whole) multiply_some(x, stride, rows, w, whole, out, resume);
    if (whole < columns) multiply_some(x + whole, stride, rows, w + whole * 32, columns - whole, out, resume || whole);
  }

 private:
  inline void multiply_some(const bf16* x, size_t stride, int rows, const bf16* w, int columns, float* out, bool resume) {
    for (int i = 0, count; i < rows; i += count) {
      count = rows - i < ROWS_AT_ONCE ? rows - i : int(ROWS_AT_ONCE);
      multiply_height(t, x + i * stride, stride, count, w, columns, out + i * 64, resume, nothing);
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
  int rows = row_end - row_begin;
  if (p.w.dtype == SW_BF16)
    (rows <= FEW_ROWS      ? linear_few
     : rows <= TILE_HEIGHT ? linear_low
                           : linear_tiles)(p, row_begin, row_end, block_begin, block_end);
  else if (p.w.dtype == SW_E4M3)
    linear_narrow<NarrowTiles>(p, row_begin, row_end, block_begin, block_end);
  else if (!sw_is_integers(p.w.dtype) || rows < bytes_from(p.w))
    linear(p, row_begin, row_end, block_begin, block_end);
  else
    byte_product(p.w)(p, row_begin, row_end, block_begin, block_end);
}
