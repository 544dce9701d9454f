/* Rows into the packed layout of linear/kernel.inl, and single rows out of it. */
enum { PACK_COLUMNS = 256 };

template <class T>
static void convert(const void* source, int source_dtype, size_t at, int count, T* out) {
  if (source_dtype == SW_FP32)
    for (int i = 0; i < count; ++i) narrow(((const float*)source)[at + i], out + i);
  else if (source_dtype == SW_BF16)
    for (int i = 0; i < count; ++i) narrow(widen(((const bf16*)source)[at + i]), out + i);
  else
    for (int i = 0; i < count; ++i) narrow(half_to_float(((const uint16_t*)source)[at + i]), out + i);
}

/* Up to 32 rows go together, so that whole lines of the packed block are written. */
template <class T>
static void pack_typed(T* packed, int k, const void* source, int source_dtype, size_t source_stride, int rows,
                       const int32_t* destination) {
  enum { STEP = Operand<T>::STEP };
  size_t block_size = (size_t)(k + STEP - 1) / STEP * STEP * 32;
  alignas(64) T staged[32][PACK_COLUMNS];
  for (int first = 0; first < rows; first += 32) {
    int count = rows - first < 32 ? rows - first : 32;
    T* at[32];
    for (int r = 0; r < count; ++r)
      at[r] = packed + destination[first + r] / 32 * block_size + destination[first + r] % 32 * STEP;
    for (int column = 0; column < k; column += PACK_COLUMNS) {
      int columns = k - column < PACK_COLUMNS ? k - column : PACK_COLUMNS;
      for (int r = 0; r < count; ++r) {
        convert(source, source_dtype, (first + r) * source_stride + column, columns, staged[r]);
        if (columns % STEP) staged[r][columns] = 0;
      }
      for (int c = 0; c < columns; c += STEP)
        for (int r = 0; r < count; ++r)
          memcpy(at[r] + (size_t)(column + c) * 32, &staged[r][c], STEP * sizeof(T));
    }
  }
}

static void pack_rows(const sw_weight& w, const void* source, int source_dtype, size_t source_stride, int rows,
                      const int32_t* destination) {
  if (w.dtype == SW_BF16)
    pack_typed((bf16*)w.at, w.k, source, source_dtype, source_stride, rows, destination);
  else
    pack_typed((float*)w.at, w.k, source, source_dtype, source_stride, rows, destination);
}

template <class T>
static void read_typed(const T* packed, int k, int row, float scale, float* out) {
  enum { STEP = Operand<T>::STEP };
  size_t block_size = (size_t)(k + STEP - 1) / STEP * STEP * 32;
  const T* from = packed + row / 32 * block_size + row % 32 * STEP;
  for (int c = 0; c < k; ++c) out[c] = widen(from[(size_t)(c / STEP) * 32 * STEP + c % STEP]) * scale;
}

static void read_row(const sw_weight& w, int row, float scale, float* out) {
  if (sw_is_integers(w.dtype))
    read_codes(w, row, scale, out);
  else if (w.dtype == SW_BF16)
    read_typed((const bf16*)w.at, w.k, row, scale, out);
  else
    read_typed((const float*)w.at, w.k, row, scale, out);
}
