/* y = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias. The variance is taken of differences, where a sum of
 * squares would cancel. */

/* Sums [0, width) of term(i, lanes), in four sums that are added in order; lanes behind the width add 0. */
template <class Term>
static float sum_of(int width, Term term) {
  F16 sum[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 64 <= width; i += 64)
    for (int j = 0; j < 4; ++j) sum[j] = term(sum[j], i + j * 16, 16);
  for (int j = 0; i < width; i += 16, ++j) sum[j] = term(sum[j], i, width - i);
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class Out>
static void centre(const float* x, const float* weight, const float* bias, Out* out, float* kept, int width,
                   float eps) {
  F16 mean = splat(sum_of(width, [=](F16 sum, int i, int count) { return sum + pick(x + i, count); }) / (float)width);
  float squares = sum_of(width, [=](F16 sum, int i, int count) {
    F16 centred = pick(x + i, count) - mean;
    if (count < 16) centred = where_less(load(lane_number), splat((float)count), centred, zero());
    return fma(centred, centred, sum);
  });
  F16 scale = splat(1.0f / sqrtf(squares / (float)width + eps));
  for (int i = 0; i < width; i += 16) {
    int count = width - i;
    F16 value = (pick(x + i, count) - mean) * scale * pick(weight + i, count);
    if (bias) value = value + pick(bias + i, count);
    put(out + i, value, count);
    if (kept) put(kept + i, value, count);
  }
}

static void layer_norm(const float* x, const float* weight, const float* bias, void* out, float* kept, int width,
                       float eps, int out_dtype) {
  if (out_dtype == SW_BF16)
    centre(x, weight, bias, (bf16*)out, kept, width, eps);
  else
    centre(x, weight, bias, (float*)out, kept, width, eps);
}
