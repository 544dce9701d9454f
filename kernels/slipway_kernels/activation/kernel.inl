/* exp, tanh, erf and the gates, lane by lane, from additions, products and quotients alone: the C library's would
 * differ between machines, and cost more than the product before them. Relative error of exp: 2e-7. */
inline F16 exponential(F16 x) {
  const F16 magic = splat(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer */
  F16 lowest = splat(-87.0f);
  F16 clamped = smaller(splat(88.0f), larger(lowest, x));
  F16 rounded = fma(clamped, splat(1.44269504f), magic);
  F16 n = rounded - magic;
  F16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + splat(1.0f);
  F16 value = scale_by_power(p, rounded);
  return where_less(x, lowest, zero(), value);
}

inline float exponential(float x) { return first_lane(exponential(splat(x))); }

inline F16 hyperbolic_tangent(F16 x) {
  F16 size = magnitude(x);
  F16 z = x * x;
  F16 p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  F16 small = fma(p * z, x, x);
  F16 large = splat(1.0f) - splat(2.0f) / (exponential(size + size) + splat(1.0f));
  large = where_less(x, zero(), zero() - large, large);
  return where_less(size, splat(0.625f), small, large);
}

inline F16 sigmoid(F16 x) { return splat(1.0f) / (splat(1.0f) + exponential(zero() - x)); }

/* Φ(x), the share of a normal distribution below x, times 2: erfc(-x / √2). With z = |x| / √2 and t = 1 / (1 + 0.4 z)
 * erfc(z) · exp(z²) is t times a polynomial of t, to a relative error of 4e-7 (least squares over [0, 9.4],
 * weighted until all errors were alike). No difference of nearly equal numbers is taken below 0. */
inline F16 twice_normal(F16 x) {
  F16 z = magnitude(x) * splat(0.70710678f);
  F16 t = splat(1.0f) / fma(z, splat(0.4f), splat(1.0f));
  F16 p = splat(0.0400545708855f);
  p = fma(p, t, splat(-0.1344196945429f));
  p = fma(p, t, splat(0.0716324746609f));
  p = fma(p, t, splat(0.1023049131036f));
  p = fma(p, t, splat(0.0696924030781f));
  p = fma(p, t, splat(0.1977542191744f));
  p = fma(p, t, splat(0.2007510811090f));
  p = fma(p, t, splat(0.2266055941582f));
  p = fma(p, t, splat(0.2256244868040f));
  F16 above = p * t * exponential(zero() - z * z);
  return where_less(x, zero(), above, splat(2.0f) - above);
}

inline F16 activate(F16 x, int activation) {
  if (activation == SW_SILU) return x / (splat(1.0f) + exponential(zero() - x));
  if (activation == SW_GELU_TANH) {
    F16 inner = splat(0.7978845608f) * fma(splat(0.044715f) * x * x, x, x);
    return splat(0.5f) * x * (splat(1.0f) + hyperbolic_tangent(inner));
  }
  if (activation == SW_RELU) return larger(zero(), x);
  if (activation == SW_TANH) return hyperbolic_tangent(x);
  return splat(0.5f) * x * twice_normal(x);
}

/* out[row] += sigmoid(gate[row]) · y[row] */
static void add_gated(float* out, const float* y, float gate, int width) {
  float share = first_lane(sigmoid(splat(gate)));
  for (int i = 0; i < width; ++i) out[i] += share * y[i];
}
