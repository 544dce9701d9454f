/* Weights rounded to the nearest code, with a scale for each group of columns. */

/* Where all weights are equal any scale will do, but 0. */
static inline float positive(float scale) { return scale > 0.0f ? scale : 1.0f; }

/* To the nearest integer, ties to even, of what is less than 2^22. */
static inline float to_nearest(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

static inline float bounded(float value, float least, float most) {
  value = value < least ? least : value;
  return value > most ? most : value;
}

/* One group of `count` columns. */
static void round_group(const float* x, int count, int dtype, uint8_t* codes, float* scale, float* minimum) {
  float least = x[0], most = x[0];
  int i = 0;
  if (count >= 16) {
    F16 low = load(x), high = low;
    for (; i + 16 <= count; i += 16) low = smaller(low, load(x + i)), high = larger(high, load(x + i));
    least = 0.0f - largest_lane(zero() - low), most = largest_lane(high);
  }
  for (; i < count; ++i) {
    least = x[i] < least ? x[i] : least;
    most = x[i] > most ? x[i] : most;
  }
  float magnitude = most > -least ? most : -least;
  if (dtype == SW_INT4) {
    float step = *scale = positive((most - least) / 15.0f);
    *minimum = least;
    for (int i = 0; i < count; ++i) codes[i] = (uint8_t)bounded(to_nearest((x[i] - least) / step), 0.0f, 15.0f);
  } else if (dtype == SW_INT8) {
    float step = *scale = positive(magnitude / 127.0f);
    for (int i = 0; i < count; ++i) codes[i] = (uint8_t)(int8_t)to_nearest(x[i] / step);
  } else {
    float step = *scale = positive(magnitude / 448.0f);
    for (int i = 0; i < count; ++i)
      codes[i] = narrowed_as<Narrow<4>>(bounded(x[i] / step, -448.0f, 448.0f));
  }
}

static void round_rows(const sw_source& source, int columns, int first, int count, int through,
                       const sw_rounded& out) {
  int groups = columns / out.group;
  float* numbers = (float*)malloc((size_t)columns * sizeof(float));
  for (int row = first; row < first + count; ++row) {
    for (int column = 0; column < columns; column += PACK_COLUMNS) {
      int piece = columns - column < PACK_COLUMNS ? columns - column : PACK_COLUMNS;
      take_weights(source, row, column, piece, numbers + column);
    }
    for (int i = 0; through == SW_BF16 && i < columns; ++i) {
      bf16 narrower;
      narrow(numbers[i], &narrower);
      numbers[i] = widen(narrower);
    }
    for (int group = 0; group < groups; ++group) {
      size_t at = (size_t)row * groups + group;
      round_group(numbers + group * out.group, out.group, out.dtype,
                  out.codes + (size_t)row * columns + group * out.group, out.scales + at,
                  out.minimums ? out.minimums + at : nullptr);
    }
  }
  free(numbers);
}
