/* y = x · Wᵀ over a packed W: [N/32][K/2][32][2] in bf16, [N/32][K][32] in fp32.
 *
 * Every output has one fp32 accumulator and sums over K in order, whatever the number of rows: a row's
 * result is the same alone and in a batch, bit by bit. */

#if defined(__AVX512F__)
enum { TILE_ROWS = 12, TILE_GROUPS = 2 }; /* 24 of 32 registers accumulate */
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_GROUPS = 1 }; /* 12 of 16 */
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
enum { TILE_ROWS = 6, TILE_GROUPS = 1 }; /* 24 of 32 */
#elif defined(__aarch64__)
enum { TILE_ROWS = 4, TILE_GROUPS = 1 }; /* 16 of 32: both halves of bf16 pairs take 8 */
#else
enum { TILE_ROWS = 2, TILE_GROUPS = 1 };
#endif
enum { ROWS = SW_ROWS, WIDE_GROUPS = 2 * TILE_GROUPS, PART_BYTES = 400 << 10 };

/* Columns in groups of sixteen, each with its own base and its own stride from one step of K to the next. Each step
 * prefetches what lies `ahead` bytes after its columns. */
template <class T>
struct Groups {
  const T* at[4];
  size_t stride[4];
  size_t ahead = 0;
};

/* out[M][G · 16] (+)= x[M] · w, where K is cut into `pieces` of so many steps, each with groups of its own. */
template <class T, int M, int G, class X>
__attribute__((noinline)) static void tile(const X* x, size_t x_stride, const Groups<T>* w, int pieces, int first,
                                           int steps, float* out, size_t out_stride, int resume) {
  typedef Operand<T> O;
  F16 sum[M][G];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sum[m][g] = resume ? load(out + m * out_stride + g * 16) : zero();
  /* One pointer for three rows: the address forms of x86 reach row, row + stride and row + 2 · stride. */
  const X* row[(M + 2) / 3];
#pragma GCC unroll 4
  for (int i = 0; i < (M + 2) / 3; ++i) row[i] = x + i * 3 * x_stride;
  for (; pieces > 0; --pieces, ++w) {
    const T* at[G];
    size_t stride[G], ahead = w->ahead;
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) at[g] = w->at[first + g], stride[g] = w->stride[first + g];
    for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 2
      for (int part = 0; part < O::PARTS_OF_STEP; ++part) {
        typename O::Value b[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) b[g] = O::row(at[g], part);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          typename O::Value a = O::broadcast(row[m / 3] + (m % 3) * x_stride, part);
#pragma GCC unroll 4
          for (int g = 0; g < G; ++g) sum[m][g] = O::accumulate(sum[m][g], a, b[g]);
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        __builtin_prefetch((const char*)at[g] + ahead);
        at[g] += stride[g];
      }
#pragma GCC unroll 4
      for (int i = 0; i < (M + 2) / 3; ++i) row[i] += O::STEP;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) store(out + m * out_stride + g * 16, sum[m][g]);
}

template <class T>
struct Tiles {
  /* The tile of exactly `rows` rows, 1 to M. */
  template <int M, int G, class X>
  static inline void of(int rows, const X* x, size_t x_stride, const Groups<T>* w, int pieces, int first, int steps,
                        float* out, size_t out_stride, int resume) {
    if constexpr (M > 0) {
      if (rows == M)
        tile<T, M, G>(x, x_stride, w, pieces, first, steps, out, out_stride, resume);
      else
        of<M - 1, G>(rows, x, x_stride, w, pieces, first, steps, out, out_stride, resume);
    }
  }
};

/* Rows of each tile where `rows` are cut into as few as hold `most`, as even as can be. */
static inline int even_tiles(int rows, int most) {
  int tiles = (rows + most - 1) / most;
  return tiles ? (rows + tiles - 1) / tiles : 0;
}

/* out[rows][groups · 16] (+)= x · w for rows <= ROWS and groups <= 4, cut into tiles that fit the registers. */
template <class T, class X>
static void multiply(const X* x, size_t x_stride, int rows, const Groups<T>* w, int pieces, int groups, int steps,
                     float* out, size_t out_stride, int resume) {
  /* Two parts of a step wait for each other: a tile of the one row that is left would take as long as four. */
  int tile_rows = Operand<T>::PARTS_OF_STEP > 1 ? even_tiles(rows, TILE_ROWS) : TILE_ROWS;
  for (int g = 0; g < groups;) {
    int wide = groups - g >= WIDE_GROUPS && rows <= TILE_ROWS / 2 ? WIDE_GROUPS
               : groups - g >= TILE_GROUPS                        ? TILE_GROUPS
                                                                  : 1;
    for (int m = 0; m < rows; m += tile_rows) {
      int count = rows - m < tile_rows ? rows - m : tile_rows;
      const X* from = x + m * x_stride;
      float* to = out + m * out_stride + g * 16;
      if (wide == WIDE_GROUPS)
        Tiles<T>::template of<TILE_ROWS / 2, WIDE_GROUPS>(count, from, x_stride, w, pieces, g, steps, to, out_stride,
                                                          resume);
      else if (wide == TILE_GROUPS)
        Tiles<T>::template of<TILE_ROWS, TILE_GROUPS>(count, from, x_stride, w, pieces, g, steps, to, out_stride, resume);
      else
        Tiles<T>::template of<TILE_ROWS, 1>(count, from, x_stride, w, pieces, g, steps, to, out_stride, resume);
    }
    g += wide;
  }
}

template <class T>
static void put(T* out, F16 value, int count) {
  if (count >= 16) return store(out, value);
  T lane[16];
  store(lane, value);
  for (int i = 0; i < count; ++i) out[i] = lane[i];
}

static F16 pick(const float* values, int count) {
  if (count >= 16) return load(values);
  float lane[16] = {};
  for (int i = 0; i < count; ++i) lane[i] = values[i];
  return load(lane);
}

/* Sixteen finished sums of one row on their way to memory. */
template <class Out>
static inline void finish_group(const Product& p, F16 value, Out* out, int column) {
  int count = p.n - column;
  if (count <= 0) return;
  if (p.bias) value = value + pick(p.bias + column, count);
  if (p.softcap > 0.0f) value = splat(p.softcap) * hyperbolic_tangent(value / splat(p.softcap));
  if (p.pointwise) value = activate(value, p.pointwise);
  if constexpr (sizeof(Out) == 4) {
    if (p.accumulate) value = value + pick(out + column, count);
  }
  put(out + column, value, count);
}

/* Gate and up stand beside each other in every block of 32. */
template <class Out>
static inline void finish_gated(const Product& p, F16 gate, F16 up, Out* out, int block) {
  int count = p.n / 2 - block * 16;
  if (count <= 0) return;
  if (p.bias) gate = gate + load(p.bias + block * 32), up = up + load(p.bias + block * 32 + 16);
  put(out + block * 16, activate(gate, p.activation) * up, count);
}

template <class Out>
static void gate_typed(const float* gate, const float* up, int step, int activation, Out* out, int width) {
  for (int i = 0; i < width; i += 16, gate += step, up += step)
    put(out + i, activate(pick(gate, width - i), activation) * pick(up, width - i), width - i);
}

static void gate_row(const float* gate, const float* up, int step, int activation, void* out, int width,
                     int out_dtype) {
  if (out_dtype == SW_BF16)
    gate_typed(gate, up, step, activation, (bf16*)out, width);
  else
    gate_typed(gate, up, step, activation, (float*)out, width);
}

template <class Out>
static void finish_tile(const Product& p, const float* sums, int row, int rows, int block, int blocks) {
  for (int m = 0; m < rows; ++m) {
    Out* out = (Out*)p.out + (size_t)(row + m) * p.out_stride;
    for (int b = 0; b < blocks; ++b) {
      const float* s = sums + m * 64 + b * 32;
      if (p.activation) {
        finish_gated(p, load(s), load(s + 16), out, block + b);
      } else {
        finish_group(p, load(s), out, (block + b) * 32);
        finish_group(p, load(s + 16), out, (block + b) * 32 + 16);
      }
    }
  }
}

/* Of 32 columns each, 64 floats from row to row. */
static inline void clear_rows(float* sums, int rows) {
  for (int i = 0; i < rows; ++i) store(sums + i * 64, zero()), store(sums + i * 64 + 16, zero());
}

/* `rows` rows of finished sums, 64 floats from row to row. */
static void finish_rows(const Product& p, const float* sums, int row, int rows, int block, int blocks) {
  if (p.out_dtype == SW_BF16)
    finish_tile<bf16>(p, sums, row, rows, block, blocks);
  else
    finish_tile<float>(p, sums, row, rows, block, blocks);
}

/* Steps of K in a panel, which is 16 KiB of 32 columns, and the tiles of rows that pass by while it stays in the
 * first-level cache. */
enum { PANEL_STEPS = 128, TILES_TOGETHER = 8 };

/* Columns of rows in fp32, close together. */
static inline void widen_rows(const bf16* x, size_t stride, int rows, int columns, float* out, size_t out_stride) {
  for (int m = 0; m < rows; ++m, x += stride, out += out_stride) {
    int i = 0;
    for (; i + 16 <= columns; i += 16) store(out + i, load(x + i));
    for (; i < columns; ++i) out[i] = widen(x[i]);
  }
}

template <class T>
static void linear_typed(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  typedef Operand<T> O;
  enum { STEP = O::STEP, WIDTH = PANEL_STEPS * STEP, KEPT = O::PARTS_OF_STEP > 1 ? TILES_TOGETHER * ROWS * WIDTH : 1 };
  alignas(64) float sums[TILES_TOGETHER * ROWS * 64], kept[KEPT];
  int steps = (p.w.k + STEP - 1) / STEP, rows = row_end - row_begin;
  size_t block_size = (size_t)steps * 32 * STEP;
  int tile_rows = even_tiles(rows, ROWS);
  /* More rows than a tile are widened once for all columns of a panel. */
  bool widens = O::PARTS_OF_STEP > 1 && rows > ROWS;
  int together = widens || tile_rows <= TILE_ROWS / 2 ? 2 : 1, panel = widens ? PANEL_STEPS : steps;
  for (int block = block_begin; block < block_end; block += together) {
    int blocks = block_end - block < together ? 1 : together;
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TILES_TOGETHER * tile_rows ? row_end : row + TILES_TOGETHER * tile_rows;
      for (int first = 0; first < steps; first += panel) {
        int count = steps - first < panel ? steps - first : panel;
        Groups<T> w;
        w.ahead = SW_PREFETCH;
        for (int g = 0; g < blocks * 2; ++g) {
          w.at[g] = (const T*)p.w.at + (block + g / 2) * block_size + ((size_t)first * 32 + g % 2 * 16) * STEP;
          w.stride[g] = 32 * STEP;
        }
        const T* x = (const T*)p.x + (size_t)row * p.x_stride + (size_t)first * STEP;
        auto multiply_rows = [&](const auto* from, size_t stride) {
          for (int i = 0; i < end - row; i += tile_rows)
            multiply(from + i * stride, stride, end - row - i < tile_rows ? end - row - i : tile_rows, &w, 1, blocks * 2,
                     count, sums + i * 64, 64, first > 0);
        };
        if constexpr (O::PARTS_OF_STEP > 1) {
          if (widens) {
            widen_rows(x, p.x_stride, end - row, count * STEP, kept, WIDTH);
            multiply_rows(kept, WIDTH);
            continue;
          }
        }
        multiply_rows(x, p.x_stride);
      }
      finish_rows(p, sums, row, end - row, block, blocks);
    }
  }
}
