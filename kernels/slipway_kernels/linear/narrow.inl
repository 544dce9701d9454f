/* y = x · Wᵀ where W is e4m3 with a scale for each group of columns of a row.
 *
 * W lies in blocks of 32 rows: for each group 32 scales in fp32, then the codes of its columns two by two,
 * [columns / 2][32][2], as pairs of bf16 lie. Some columns at a time are widened to these, which is exact, and multiplied
 * as they are. Sums of a group are scaled and added in the order of K, whatever the number of rows. */
enum { NARROW_COLUMNS = 2 * PANEL_STEPS };
static_assert(Operand<bf16>::STEP == 2, "codes lie as pairs of bf16 do");

/* Codes of 32 rows and two columns each; returns what follows them. */
static inline const char* widen_pairs(const char* at, int steps, bf16* to) {
  for (int i = 0; i < steps; ++i, at += 64, to += 64) {
    __builtin_prefetch(at + SW_PREFETCH);
    widen_block<Narrow<4>>((const uint8_t*)at, to);
    widen_block<Narrow<4>>((const uint8_t*)at + 32, to + 32);
  }
  return at;
}

/* What is widened, in vectors. T is bf16: a template, for what has no parts lacks the second branch's products. */
template <class T>
struct NarrowVectors {
  enum { KEPT = Operand<T>::PARTS_OF_STEP > 1 ? TILES_TOGETHER * ROWS * NARROW_COLUMNS : 1, ROWS_AT_ONCE = ROWS };
  alignas(64) float kept[KEPT];

  /* out[rows][32] (+)= x · w, 64 floats from row to row; rows are at most TILES_TOGETHER tiles. */
  inline void multiply_rows(const T* x, size_t stride, int rows, const T* w, int columns, float* out, bool resume) {
    int steps = (columns + 1) / 2, tile_rows = even_tiles(rows, ROWS);
    Groups<T> groups = {{w, w + 32}, {64, 64}};
    auto multiply_all = [&](const auto* from, size_t from_stride) {
      for (int i = 0; i < rows; i += tile_rows)
        multiply(from + i * from_stride, from_stride, rows - i < tile_rows ? rows - i : tile_rows, &groups, 1, 2, steps,
                 out + i * 64, 64, resume);
    };
    if constexpr (Operand<T>::PARTS_OF_STEP > 1) {
      if (rows > ROWS) {
        widen_rows(x, stride, rows, steps * 2, kept, NARROW_COLUMNS);
        return multiply_all(kept, NARROW_COLUMNS);
      }
    }
    multiply_all(x, stride);
  }
};

template <class By>
static void linear_narrow(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  enum { TOGETHER = TILES_TOGETHER * By::ROWS_AT_ONCE };
  alignas(64) float sums[TOGETHER * 64], part[TOGETHER * 64];
  alignas(64) bf16 wide[NARROW_COLUMNS * 32];
  By by;
  int k = p.w.k;
  for (int block = block_begin; block < block_end; ++block) {
    for (int row = row_begin, end; row < row_end; row = end) {
      end = row_end - row < TOGETHER ? row_end : row + TOGETHER;
      clear_rows(sums, end - row);
      const char* at = (const char*)p.w.at + block * sw_block_bytes(p.w);
      for (int first = 0; first < k; first += p.w.group) {
        int group = k - first < p.w.group ? k - first : p.w.group;
        F16 scale[2] = {load((const float*)at), load((const float*)at + 16)};
        at += 128;
        for (int from = 0; from < group; from += NARROW_COLUMNS) {
          int columns = group - from < NARROW_COLUMNS ? group - from : NARROW_COLUMNS;
          at = widen_pairs(at, (columns + 1) / 2, wide);
          by.multiply_rows((const bf16*)p.x + (size_t)row * p.x_stride + first + from, p.x_stride, end - row, wide, columns,
                           part, from > 0);
        }
        for (int i = 0; i < end - row; ++i)
          for (int half = 0; half < 2; ++half) {
            float* to = sums + i * 64 + half * 16;
            store(to, fma(load(part + i * 64 + half * 16), scale[half], load(to)));
          }
      }
      finish_rows(p, sums, row, end - row, block, 1);
    }
  }
}

/* Rows into the packed layout: codes [rows, code_stride], scales [rows, groups] in fp32. */
static void pack_narrow(const sw_weight& w, const uint8_t* codes, size_t code_stride, const float* scales, int rows,
                        const int32_t* destination) {
  int groups = (w.k + w.group - 1) / w.group;
  for (int i = 0; i < rows; ++i) {
    int row = destination[i] % 32;
    char* at = (char*)w.at + destination[i] / 32 * sw_block_bytes(w);
    for (int g = 0; g < groups; ++g) {
      memcpy(at + row * 4, scales + (size_t)i * groups + g, 4);
      at += 128;
      int first = g * w.group, end = w.k - first < w.group ? w.k : first + w.group;
      const uint8_t* code = codes + i * code_stride;
      for (int c = first; c < end; c += 2, at += 64) {
        at[row * 2] = (char)code[c];
        at[row * 2 + 1] = c + 1 < end ? (char)code[c + 1] : 0;
      }
    }
  }
}

/* One row of W in fp32, times `factor`. */
static void read_narrow(const sw_weight& w, int row, float factor, float* out) {
  const char* at = (const char*)w.at + row / 32 * sw_block_bytes(w);
  row %= 32;
  for (int first = 0; first < w.k; first += w.group) {
    int end = w.k - first < w.group ? w.k : first + w.group;
    float scale = ((const float*)at)[row];
    at += 128;
    for (int c = first; c < end; c += 2, at += 64) {
      bf16 pair[32];
      widen_block<Narrow<4>>((const uint8_t*)at + row / 16 * 32, pair);
      for (int i = 0; i < 2 && c + i < end; ++i) out[c + i] = widen(pair[row % 16 * 2 + i]) * scale * factor;
    }
  }
}
