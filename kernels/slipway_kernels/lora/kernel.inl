/* The two products of a low-rank adapter (Hu et al. 2021) over rows that lie anywhere: h = A · x, out += B · h.
 *
 * Columns go by sixteen. Every output is one fp32 sum over K in order, whatever rows are computed beside it. */

enum { LOW_ROWS = 6, LOW_GROUPS = 2 }; /* of a register tile: six pointers to rows fit the registers beside it */

/* sum[m][g] = the products of `steps` steps of rows x[m] + first[g] with the columns at[g]. */
template <class T, int M, int G>
static inline void low_tile(const T* const* x, const int* first, const T* const* at, int steps, F16 (*sum)[LOW_GROUPS]) {
  typedef Operand<T> O;
  F16 s[M][G];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) s[m][g] = zero();
  for (int step = 0; step < steps; ++step) {
    size_t offset = (size_t)step * O::STEP;
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const T* columns = at[g] + offset * 16;
      __builtin_prefetch((const char*)columns + SW_PREFETCH);
#pragma GCC unroll 2
      for (int part = 0; part < O::PARTS_OF_STEP; ++part) {
        typename O::Value b = O::row(columns, part);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) s[m][g] = O::accumulate(s[m][g], O::broadcast(x[m] + first[g] + offset, part), b);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sum[m][g] = s[m][g];
}

template <class T, int G, int M = LOW_ROWS>
static inline void low_tile_of(int rows, const T* const* x, const int* first, const T* const* at, int steps,
                               F16 (*sum)[LOW_GROUPS]) {
  if constexpr (M > 0) {
    if (rows == M)
      low_tile<T, M, G>(x, first, at, steps, sum);
    else
      low_tile_of<T, G, M - 1>(rows, x, first, at, steps, sum);
  }
}

template <class T, class H>
static void shrink_typed(const sw_adapter& adapter, int k, const LowRows& x, int begin, int end, H* h, size_t stride) {
  typedef Operand<T> O;
  int steps = (k + O::STEP - 1) / O::STEP, first[LOW_GROUPS] = {};
  F16 sum[LOW_ROWS][LOW_GROUPS];
  for (int group = begin; group < end; group += LOW_GROUPS) {
    int groups = end - group < LOW_GROUPS ? end - group : LOW_GROUPS;
    const T *at[LOW_GROUPS], *row[LOW_ROWS];
    for (int g = 0; g < groups; ++g) at[g] = (const T*)adapter.a + (size_t)(group + g) * steps * 16 * O::STEP;
    for (int i = 0; i < x.count; i += LOW_ROWS) {
      int rows = x.count - i < LOW_ROWS ? x.count - i : LOW_ROWS;
      for (int m = 0; m < rows; ++m) row[m] = (const T*)x.at + (size_t)x.rows[i + m] * x.stride;
      if (groups == 2)
        low_tile_of<T, 2>(rows, row, first, at, steps, sum);
      else
        low_tile_of<T, 1>(rows, row, first, at, steps, sum);
      for (int m = 0; m < rows; ++m)
        for (int g = 0; g < groups; ++g) store(h + (i + m) * stride + (group + g) * 16, sum[m][g]);
    }
  }
}

/* h[i] = A · x of columns 16 · [begin, end), i counting the rows; of bf16, or not rounded yet. */
static void shrink(const sw_adapter& adapter, int k, const LowRows& x, int begin, int end, int dtype, void* h,
                   size_t stride, int h_dtype) {
  if (dtype != SW_BF16)
    shrink_typed<float>(adapter, k, x, begin, end, (float*)h, stride);
  else if (h_dtype == SW_BF16)
    shrink_typed<bf16>(adapter, k, x, begin, end, (bf16*)h, stride);
  else
    shrink_typed<bf16>(adapter, k, x, begin, end, (float*)h, stride);
}

template <class T>
static void expand_typed(const sw_adapter& adapter, const T* h, size_t h_stride, const LowRows& out, int n, int begin,
                         int end) {
  typedef Operand<T> O;
  F16 sum[LOW_ROWS][LOW_GROUPS];
  for (int group = begin; group < end;) {
    const sw_span* span = adapter.spans + group;
    int groups = group + 1 < end && span[0].steps == span[1].steps ? 2 : 1, first[LOW_GROUPS];
    const T *at[LOW_GROUPS], *row[LOW_ROWS];
    for (int g = 0; g < groups; ++g) {
      at[g] = (const T*)adapter.b + (size_t)span[g].at * 16 * O::STEP;
      first[g] = span[g].first;
    }
    for (int i = 0; i < out.count && (span->steps || adapter.bias); i += LOW_ROWS) {
      int rows = out.count - i < LOW_ROWS ? out.count - i : LOW_ROWS;
      for (int m = 0; m < rows; ++m) row[m] = h + (i + m) * h_stride;
      if (groups == 2)
        low_tile_of<T, 2>(rows, row, first, at, span->steps, sum);
      else
        low_tile_of<T, 1>(rows, row, first, at, span->steps, sum);
      for (int m = 0; m < rows; ++m)
        for (int g = 0; g < groups; ++g) {
          int column = (group + g) * 16;
          float* to = (float*)out.at + (size_t)out.rows[i + m] * out.stride + column;
          F16 added = adapter.bias ? sum[m][g] + load(adapter.bias + column) : sum[m][g];
          put(to, added + pick(to, n - column), n - column);
        }
    }
    group += groups;
  }
}

/* out[row] += B · h[i] and the bias, of columns 16 · [begin, end) below n; out is fp32. */
static void expand(const sw_adapter& adapter, const void* h, size_t h_stride, int dtype, const LowRows& out, int n,
                   int begin, int end) {
  if (dtype == SW_BF16)
    expand_typed(adapter, (const bf16*)h, h_stride, out, n, begin, end);
  else
    expand_typed(adapter, (const float*)h, h_stride, out, n, begin, end);
}

/* What the head's product does last, of a row that it left without. */
static void cap_row(float* row, int width, float softcap) {
  for (int i = 0; i < width; i += 16)
    put(row + i, splat(softcap) * hyperbolic_tangent(pick(row + i, width - i) / splat(softcap)), width - i);
}
