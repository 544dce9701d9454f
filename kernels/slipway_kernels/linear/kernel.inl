/* y = x · Wᵀ over a packed W: [N/32][K/2][32][2] in bf16, [N/32][K][32] in fp32.
 *
 * Every output has one fp32 accumulator and sums over K in order, whatever the number of rows: a row's
 * result is the same alone and in a batch, bit by bit. */

#if defined(__AVX512F__)
enum { TILE_ROWS = 12, TILE_GROUPS = 2 }; /* 24 of 32 registers accumulate */
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_GROUPS = 1 }; /* 12 of 16 */
#else
enum { TILE_ROWS = 2, TILE_GROUPS = 1 };
#endif
enum { ROWS = SW_ROWS, WIDE_GROUPS = 2 * TILE_GROUPS, PART_BYTES = 400 << 10 };

/* Columns in groups of sixteen, each with its own base and its own stride from one step of K to the next. */
template <class T>
struct Groups {
  const T* at[4];
  size_t stride[4];
};

/* out[M][G · 16] (+)= x[M] · w, `steps` steps of K. */
template <class T, int M, int G>
__attribute__((noinline)) static void tile(const T* x, size_t x_stride, const Groups<T>& w, int first, int steps,
                                           float* out, size_t out_stride, int resume) {
  typedef Operand<T> O;
  F16 sum[M][G];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sum[m][g] = resume ? load(out + m * out_stride + g * 16) : zero();
  const T* at[G];
  size_t stride[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) at[g] = w.at[first + g], stride[g] = w.stride[first + g];
  /* One pointer for three rows: the address forms of x86 reach row, row + stride and row + 2 · stride. */
  const T* row[(M + 2) / 3];
#pragma GCC unroll 4
  for (int i = 0; i < (M + 2) / 3; ++i) row[i] = x + i * 3 * x_stride;
  for (int step = 0; step < steps; ++step) {
    typename O::Value b[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      b[g] = O::row(at[g]);
      __builtin_prefetch((const char*)at[g] + SW_PREFETCH);
      at[g] += stride[g];
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      typename O::Value a = O::broadcast(row[m / 3] + (m % 3) * x_stride);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sum[m][g] = O::accumulate(sum[m][g], a, b[g]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < (M + 2) / 3; ++i) row[i] += O::STEP;
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) store(out + m * out_stride + g * 16, sum[m][g]);
}

template <class T>
struct Tiles {
  /* The tile of exactly `rows` rows, 1 to M. */
  template <int M, int G>
  static inline void of(int rows, const T* x, size_t x_stride, const Groups<T>& w, int first, int steps,
                        float* out, size_t out_stride, int resume) {
    if constexpr (M > 0) {
      if (rows == M)
        tile<T, M, G>(x, x_stride, w, first, steps, out, out_stride, resume);
      else
        of<M - 1, G>(rows, x, x_stride, w, first, steps, out, out_stride, resume);
    }
  }
};

/* out[rows][groups · 16] (+)= x · w for rows <= ROWS and groups <= 4, cut into tiles that fit the registers. */
template <class T>
static void multiply(const T* x, size_t x_stride, int rows, const Groups<T>& w, int groups, int steps, float* out,
                     size_t out_stride, int resume) {
  for (int g = 0; g < groups;) {
    int wide = groups - g >= WIDE_GROUPS && rows <= TILE_ROWS / 2 ? WIDE_GROUPS
               : groups - g >= TILE_GROUPS                        ? TILE_GROUPS
                                                                  : 1;
    for (int m = 0; m < rows; m += TILE_ROWS) {
      int count = rows - m < TILE_ROWS ? rows - m : TILE_ROWS;
      const T* from = x + m * x_stride;
      float* to = out + m * out_stride + g * 16;
      if (wide == WIDE_GROUPS)
        Tiles<T>::template of<TILE_ROWS / 2, WIDE_GROUPS>(count, from, x_stride, w, g, steps, to, out_stride, resume);
      else if (wide == TILE_GROUPS)
        Tiles<T>::template of<TILE_ROWS, TILE_GROUPS>(count, from, x_stride, w, g, steps, to, out_stride, resume);
      else
        Tiles<T>::template of<TILE_ROWS, 1>(count, from, x_stride, w, g, steps, to, out_stride, resume);
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
static void gate_typed(const float* both, int activation, Out* out, int width) {
  for (int i = 0; i < width; i += 16)
    put(out + i, activate(load(both + 2 * i), activation) * load(both + 2 * i + 16), width - i);
}

static void gate_row(const float* both, int activation, void* out, int width, int out_dtype) {
  if (out_dtype == SW_BF16)
    gate_typed(both, activation, (bf16*)out, width);
  else
    gate_typed(both, activation, (float*)out, width);
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

template <class T>
static void linear_typed(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  typedef Operand<T> O;
  alignas(64) float sums[ROWS * 64];
  int steps = (p.w.k + O::STEP - 1) / O::STEP;
  size_t block_size = (size_t)steps * 32 * O::STEP;
  int rows = row_end - row_begin;
  int tiles = (rows + ROWS - 1) / ROWS;
  int tile_rows = tiles ? (rows + tiles - 1) / tiles : 0;
  int together = tile_rows <= TILE_ROWS / 2 ? 2 : 1;
  for (int block = block_begin; block < block_end; block += together) {
    int blocks = block_end - block < together ? 1 : together;
    Groups<T> w;
    for (int g = 0; g < blocks * 2; ++g) {
      w.at[g] = (const T*)p.w.at + (block + g / 2) * block_size + (g % 2) * 16 * O::STEP;
      w.stride[g] = 32 * O::STEP;
    }
    for (int row = row_begin; row < row_end; row += tile_rows) {
      int count = row_end - row < tile_rows ? row_end - row : tile_rows;
      multiply((const T*)p.x + (size_t)row * p.x_stride, p.x_stride, count, w, blocks * 2, steps, sums, 64, 0);
      if (p.out_dtype == SW_BF16)
        finish_tile<bf16>(p, sums, row, count, block, blocks);
      else
        finish_tile<float>(p, sums, row, count, block, blocks);
    }
  }
}
