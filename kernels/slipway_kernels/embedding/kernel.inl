/* Rows into the packed layout of linear/kernel.inl, and single rows out of it. */
enum { PACK_COLUMNS = 256 };

/* Sixteen numbers, as fp32. */
static inline void widen_sixteen(const sw_source& s, size_t at, float* out) {
  switch (s.dtype) {
    case SW_FP32: return store(out, load((const float*)s.at + at));
    case SW_BF16: return store(out, load((const bf16*)s.at + at));
    case SW_FP16: return store(out, load_halves((const uint16_t*)s.at + at));
    case SW_E4M3: return store(out, load_narrow<Narrow<4>>((const uint8_t*)s.at + at));
    case SW_E5M2: return store(out, load_narrow<Narrow<5>>((const uint8_t*)s.at + at));
    case SW_INT8:
      for (int i = 0; i < 16; ++i) out[i] = ((const int8_t*)s.at)[at + i];
      return;
    default:
      for (int i = 0; i < 16; ++i) out[i] = ((const uint8_t*)s.at)[at + i];
  }
}

/* Numbers [first, first + count) of a row as they lie. */
static void take_numbers(const sw_source& s, int row, int first, int count, float* out) {
  size_t at = row * s.stride + first, bytes = s.dtype == SW_FP32 ? 4 : s.dtype == SW_BF16 || s.dtype == SW_FP16 ? 2 : 1;
  int i = 0;
  for (; i + 16 <= count; i += 16) widen_sixteen(s, at + i, out + i);
  if (i < count) { /* behind a row's last number memory may end */
    alignas(64) char last[64] = {};
    float lane[16];
    sw_source rest = s;
    memcpy(last, (const char*)s.at + (at + i) * bytes, (count - i) * bytes);
    rest.at = last;
    widen_sixteen(rest, 0, lane);
    memcpy(out + i, lane, (count - i) * 4);
  }
}

/* Columns [first, first + count) of a row, count <= PACK_COLUMNS, as what they stand for. */
static void take_weights(const sw_source& s, int row, int first, int count, float* out) {
  const float* scale = s.scales ? s.scales + (size_t)(row / s.rows) * s.scale_stride : nullptr;
  const float* minimum = s.minimums ? s.minimums + (size_t)(row / s.rows) * s.scale_stride : nullptr;
  float shift = s.dtype == SW_INT4 && !minimum ? -8.0f : 0.0f;
  if (s.columns_at) {
    for (int i = 0; i < count; ++i) {
      int column = s.columns_at[first + i], group = column / s.columns;
      take_numbers(s, row, column, 1, out + i);
      out[i] = (out[i] + shift) * scale[group];
      if (minimum) out[i] += minimum[group];
    }
    return;
  }
  take_numbers(s, row, first, count, out);
  for (int i = 0; scale && i < count;) {
    int group = (first + i) / s.columns;
    int end = count < (group + 1) * (int64_t)s.columns - first ? count : (group + 1) * s.columns - first;
    float factor = scale[group], offset = minimum ? minimum[group] : 0.0f;
    for (int j = i; j < end; ++j) out[j] = (out[j] + shift) * factor;
    for (int j = i; minimum && j < end; ++j) out[j] += offset;
    i = end;
  }
}

template <class T>
static void convert(const sw_source& s, int row, int first, int count, T* out) {
  float numbers[PACK_COLUMNS];
  take_weights(s, row, first, count, numbers);
  for (int i = 0; i < count; ++i) narrow(numbers[i], out + i);
}

/* Rows that stay beside each other go sixteen at a time, numbers that stay as they are straight from the source. */
template <class T>
static void pack_typed(const sw_weight& w, const sw_source& source, int begin, int rows, const int32_t* destination) {
  enum { STEP = Operand<T>::STEP, DTYPE = sizeof(T) == 2 ? SW_BF16 : SW_FP32, WORD = 4, LINE = 32 * WORD };
  bool as_is = source.dtype == DTYPE && !source.scales && !source.columns_at;
  size_t block_bytes = (size_t)(w.k + STEP - 1) / STEP * LINE;
  alignas(64) T staged[16][PACK_COLUMNS];
  for (int first = begin; first < begin + rows; first += 16) {
    int count = begin + rows - first < 16 ? begin + rows - first : 16;
    char* at[16];
    const char* from[16];
    bool adjacent = count == 16 && destination[first] % 16 == 0;
    for (int r = 0; r < count; ++r) {
      int row = destination[first + r];
      at[r] = (char*)w.at + row / 32 * block_bytes + row % 32 * WORD;
      adjacent = adjacent && row == destination[first] + r;
    }
    for (int column = 0; column < w.k; column += PACK_COLUMNS) {
      int columns = w.k - column < PACK_COLUMNS ? w.k - column : PACK_COLUMNS;
      size_t line = (size_t)column / STEP * LINE;
      for (int r = 0; r < count; ++r) {
        from[r] = (const char*)((const T*)source.at + (first + r) * source.stride + column);
        if (as_is && columns % STEP == 0) continue;
        convert(source, first + r, column, columns, staged[r]);
        if (columns % STEP) staged[r][columns] = 0;
        from[r] = (const char*)staged[r];
      }
      int words = (columns + STEP - 1) / STEP, word = 0;
      for (; adjacent && word + 16 <= words; word += 16)
        transpose_sixteen(from, word * WORD, at[0] + line + word * LINE);
      for (; word < words; ++word)
        for (int r = 0; r < count; ++r) memcpy(at[r] + line + word * LINE, from[r] + word * WORD, WORD);
    }
  }
  transposed();
}

static void pack_rows(const sw_weight& w, const sw_source& source, int first, int count, const int32_t* destination) {
  if (w.dtype == SW_BF16)
    pack_typed<bf16>(w, source, first, count, destination);
  else
    pack_typed<float>(w, source, first, count, destination);
}

static void convert_rows(const sw_source& source, int columns, int first, int count, void* out, int out_dtype) {
  for (int row = first; row < first + count; ++row)
    for (int column = 0; column < columns; column += PACK_COLUMNS) {
      int piece = columns - column < PACK_COLUMNS ? columns - column : PACK_COLUMNS;
      size_t at = (size_t)row * columns + column;
      if (out_dtype == SW_BF16)
        convert(source, row, column, piece, (bf16*)out + at);
      else
        convert(source, row, column, piece, (float*)out + at);
    }
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
  else if (w.dtype == SW_E4M3)
    read_narrow(w, row, scale, out);
  else if (w.dtype == SW_BF16)
    read_typed((const bf16*)w.at, w.k, row, scale, out);
  else
    read_typed((const float*)w.at, w.k, row, scale, out);
}
