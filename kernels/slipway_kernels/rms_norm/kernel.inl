/* y = x / sqrt(mean(x²) + eps) · weight, or · (1 + weight). */

static F16 pick_lanes(const float* x, int i, int width) { return pick(x + i, width - i); }

static float inverse_rms(const float* x, int width, float eps) {
  F16 sum[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 64 <= width; i += 64)
    for (int j = 0; j < 4; ++j) {
      F16 v = load(x + i + j * 16);
      sum[j] = fma(v, v, sum[j]);
    }
  for (int j = 0; i < width; i += 16, ++j) {
    F16 v = pick_lanes(x, i, width);
    sum[j] = fma(v, v, sum[j]);
  }
  float total = sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
  return 1.0f / sqrtf(total / (float)width + eps);
}

template <class Out>
static void normalize(const float* x, const float* weight, Out* out, int width, float eps, int add_one,
                      int accumulate) {
  F16 scale = splat(inverse_rms(x, width, eps));
  F16 one = splat(add_one ? 1.0f : 0.0f);
  for (int i = 0; i < width; i += 16) {
    F16 value = pick_lanes(x, i, width) * scale * (pick_lanes(weight, i, width) + one);
    if constexpr (sizeof(Out) == 4) {
      if (accumulate) value = value + pick_lanes(out, i, width);
    }
    put(out + i, value, width - i);
  }
}

static void rms_norm(const float* x, const float* weight, void* out, int width, float eps, int add_one,
                     int accumulate, int out_dtype) {
  if (out_dtype == SW_BF16)
    normalize(x, weight, (bf16*)out, width, eps, add_one, accumulate);
  else
    normalize(x, weight, (float*)out, width, eps, add_one, accumulate);
}
