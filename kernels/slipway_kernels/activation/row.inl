/* out = (or +=) activation(x + bias); bias may be null, and no activation leaves the numbers as they are. */
template <class Out>
static void activate_typed(const float* x, const float* bias, int activation, Out* out, int width, int accumulate) {
  for (int i = 0; i < width; i += 16) {
    F16 value = pick(x + i, width - i);
    if (bias) value = value + pick(bias + i, width - i);
    if (activation) value = activate(value, activation);
    if constexpr (sizeof(Out) == 4) {
      if (accumulate) value = value + pick(out + i, width - i);
    }
    put(out + i, value, width - i);
  }
}

static void activate_row(const float* x, const float* bias, int activation, void* out, int width, int accumulate,
                         int out_dtype) {
  if (out_dtype == SW_BF16)
    activate_typed(x, bias, activation, (bf16*)out, width, accumulate);
  else
    activate_typed(x, bias, activation, (float*)out, width, accumulate);
}
