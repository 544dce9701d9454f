/* Sixteen fp32 lanes on every instruction set, and sixteen pairs of bf16. Each function has one result per
 * lane that depends on that lane alone, so a kernel's outputs do not depend on where in a vector they stand.
 *
 * Included once per isa_*.cpp, inside an anonymous namespace: nothing here may be merged by the linker with
 * the same code compiled for a larger instruction set. */
typedef uint16_t bf16;

#if defined(__AVX512F__)

typedef __m512 F16;
typedef __m512i P16;

inline F16 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F16 v) { _mm512_storeu_ps(p, v); }
inline F16 splat(float v) { return _mm512_set1_ps(v); }
inline F16 fma(F16 a, F16 b, F16 c) { return _mm512_fmadd_ps(a, b, c); }
inline F16 larger(F16 a, F16 b) { return _mm512_max_ps(a, b); } /* b where either is NaN */
inline F16 smaller(F16 a, F16 b) { return _mm512_min_ps(a, b); }
inline F16 magnitude(F16 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
inline F16 where_less(F16 a, F16 b, F16 yes, F16 no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
/* v · 2^n, n given in the low bits of a float that was rounded by adding 1.5 · 2^23 */
inline F16 scale_by_power(F16 v, F16 rounded) {
  __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent));
}
/* Ties to even, as where 1.5 · 2^23 is added. */
inline F16 nearest_whole(F16 v) { return _mm512_roundscale_ps(v, 0); }
/* v · 2^n for a whole n, where neither v nor the result is subnormal. */
inline F16 times_power(F16 v, F16 n) { return _mm512_scalef_ps(v, n); }
inline float sum_lanes(F16 v) { return _mm512_reduce_add_ps(v); }
inline float largest_lane(F16 v) { return _mm512_reduce_max_ps(v); }
inline float first_lane(F16 v) { return _mm512_cvtss_f32(v); }
/* Lane i of the result is sixteen rows' row i, reduced: its lanes are joined in the order of _mm512_reduce_add_ps. Each step
 * halves the lanes of all rows at once. */
template <class Join>
inline F16 reduced_rows(const F16* rows, Join join) {
  F16 eights[8], fours[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) { /* rows in the order in which the last step leaves them */
    F16 a = rows[2 * i % 4 * 4 + i / 2], b = rows[(2 * i + 1) % 4 * 4 + i / 2];
    eights[i] = join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    fours[i] = join(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xdd));
  auto halves = [&](F16 a, F16 b) {
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return join(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  F16 first = halves(fours[0], fours[1]), second = halves(fours[2], fours[3]);
  return join(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
}
/* `rows` has sixteen vectors. Lane i is the sum, or the largest, of the lanes of vector i, for i < count. */
inline F16 sums_of_rows(const F16* rows, int) {
  return reduced_rows(rows, [](F16 a, F16 b) { return _mm512_add_ps(a, b); });
}
inline F16 largest_of_rows(const F16* rows, int) {
  return reduced_rows(rows, [](F16 a, F16 b) { return _mm512_max_ps(a, b); });
}

inline P16 load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
inline P16 splat_pair(const bf16* p) {
  int32_t pair;
  memcpy(&pair, p, 4);
  return _mm512_set1_epi32(pair);
}
/* The same, read again each time. The compiler would compute halves of it before they come to the vector, over the slow
 * way from the integer side, or keep it in a register that sums need. */
inline P16 splat_pair_again(const bf16* p) {
  P16 v;
  __asm__ volatile("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const int32_t(*)[1])p));
  return v;
}
inline F16 low_half(P16 v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
inline F16 high_half(P16 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)));
}
inline F16 load(const bf16* p) {
  __m256i half = _mm256_loadu_si256((const __m256i*)p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
#if defined(__AVX512BF16__)
inline void store(bf16* p, F16 v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
#else
/* The upper half of a lane is its bf16, the lower one anything. */
inline P16 rounded(F16 v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
}
inline void store(bf16* p, F16 v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(v), 16)));
}
#endif

#else

#if defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { PARTS = 16 / WIDTH };
typedef float Lanes __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(WIDTH * 2), aligned(2), may_alias));
struct F16 {
  Lanes part[PARTS];
};
struct P16 {
  Words part[PARTS];
};
#define SW_EACH_PART for (int i = 0; i < PARTS; ++i)

inline Lanes fma_part(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX2__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
#define SW_PARTWISE(name, parameters, expression) \
  inline F16 name parameters {                    \
    F16 r;                                        \
    SW_EACH_PART r.part[i] = expression;          \
    return r;                                     \
  }
SW_PARTWISE(load, (const float* p), *(const Lanes*)(p + i * WIDTH))
SW_PARTWISE(splat, (float v), v - (Lanes){})
SW_PARTWISE(operator+, (F16 a, F16 b), a.part[i] + b.part[i])
SW_PARTWISE(operator-, (F16 a, F16 b), a.part[i] - b.part[i])
SW_PARTWISE(operator*, (F16 a, F16 b), a.part[i] * b.part[i])
SW_PARTWISE(operator/, (F16 a, F16 b), a.part[i] / b.part[i])
SW_PARTWISE(fma, (F16 a, F16 b, F16 c), fma_part(a.part[i], b.part[i], c.part[i]))
SW_PARTWISE(larger, (F16 a, F16 b), a.part[i] > b.part[i] ? a.part[i] : b.part[i])
SW_PARTWISE(smaller, (F16 a, F16 b), a.part[i] < b.part[i] ? a.part[i] : b.part[i])
SW_PARTWISE(magnitude, (F16 a), (Lanes)((Words)a.part[i] & 0x7fffffffu))
SW_PARTWISE(where_less, (F16 a, F16 b, F16 yes, F16 no), a.part[i] < b.part[i] ? yes.part[i] : no.part[i])
SW_PARTWISE(scale_by_power, (F16 v, F16 rounded),
            (Lanes)((Words)v.part[i] + ((Words)rounded.part[i] << 23)))
SW_PARTWISE(low_half, (P16 v), (Lanes)(v.part[i] << 16))
SW_PARTWISE(high_half, (P16 v), (Lanes)(v.part[i] & 0xffff0000u))
SW_PARTWISE(load, (const bf16* p),
            (Lanes)(__builtin_convertvector(*(const Halves*)(p + i * WIDTH), Words) << 16))
inline void store(float* p, F16 v) { SW_EACH_PART *(Lanes*)(p + i * WIDTH) = v.part[i]; }
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline void store(bf16* p, F16 v) {
  SW_EACH_PART *(Halves*)(p + i * WIDTH) = (Halves)vcvt_bf16_f32((float32x4_t)v.part[i]);
}
#else
/* The upper half of a lane is its bf16, the lower one anything. */
inline P16 rounded(F16 v) {
  P16 r;
  SW_EACH_PART {
    Words bits = (Words)v.part[i];
    r.part[i] = v.part[i] == v.part[i] ? bits + 0x7fffu + ((bits >> 16) & 1u) : (bits | 0x400000u);
  }
  return r;
}
inline void store(bf16* p, F16 v) {
  P16 r = rounded(v);
  SW_EACH_PART *(Halves*)(p + i * WIDTH) = __builtin_convertvector(r.part[i] >> 16, Halves);
}
#endif
/* Halves are joined until one lane is left: the order of AVX-512's own reductions. */
template <class Join>
inline float reduced(F16 v, Join join) {
  for (int width = PARTS / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) v.part[i] = join(v.part[i], v.part[i + width]);
  Lanes lanes = v.part[0];
#if defined(__AVX2__)
  lanes = join(lanes, (Lanes)_mm256_permute2f128_ps((__m256)lanes, (__m256)lanes, 1));
  lanes = join(lanes, (Lanes)_mm256_permute_ps((__m256)lanes, 0x4e));
  lanes = join(lanes, (Lanes)_mm256_permute_ps((__m256)lanes, 0xb1));
#else
  lanes = join(lanes, (Lanes){lanes[2], lanes[3], lanes[0], lanes[1]});
  lanes = join(lanes, (Lanes){lanes[1], lanes[0], lanes[3], lanes[2]});
#endif
  return lanes[0];
}
inline float sum_lanes(F16 v) {
  return reduced(v, [](Lanes a, Lanes b) { return a + b; });
}
inline float largest_lane(F16 v) {
  return reduced(v, [](Lanes a, Lanes b) { return b > a ? b : a; });
}
inline float first_lane(F16 v) { return v.part[0][0]; }
inline F16 sums_of_rows(const F16* rows, int count) {
  float lane[16] = {};
  for (int i = 0; i < count; ++i) lane[i] = sum_lanes(rows[i]);
  return load(lane);
}
inline F16 largest_of_rows(const F16* rows, int count) {
  float lane[16] = {};
  for (int i = 0; i < count; ++i) lane[i] = largest_lane(rows[i]);
  return load(lane);
}
inline P16 load_pairs(const bf16* p) {
  P16 r;
  SW_EACH_PART r.part[i] = *(const Words*)(p + i * WIDTH * 2);
  return r;
}
inline P16 splat_pair(const bf16* p) {
  uint32_t pair;
  memcpy(&pair, p, 4);
  P16 r;
  SW_EACH_PART r.part[i] = pair - (Words){};
  return r;
}
inline P16 splat_pair_again(const bf16* p) {
#if defined(__AVX2__)
  P16 r;
  __asm__ volatile("vpbroadcastd %1, %0" : "=x"(r.part[0]) : "m"(*(const int32_t(*)[1])p));
  SW_EACH_PART r.part[i] = r.part[0];
  return r;
#else
  return splat_pair(p);
#endif
}

#endif

/* The same as fma. Where sums fill the registers, the compiler must not put the result into another than the sum's. */
inline F16 fma_in_place(F16 a, F16 b, F16 sum) {
#if defined(__AVX512F__) || !defined(__AVX2__)
  return fma(a, b, sum);
#else
  SW_EACH_PART __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.part[i]) : "x"(a.part[i]), "x"(b.part[i]));
  return sum;
#endif
}
inline F16 zero() { return splat(0.0f); }
#if !defined(__AVX512F__)
inline F16 nearest_whole(F16 v) { return v + splat(12582912.0f) - splat(12582912.0f); }
inline F16 times_power(F16 v, F16 n) { return scale_by_power(v, n + splat(12582912.0f)); }
#endif
alignas(64) static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline float widen(float v) { return v; }
inline float widen(bf16 v) {
  uint32_t bits = (uint32_t)v << 16;
  float r;
  memcpy(&r, &bits, 4);
  return r;
}
inline void narrow(float v, float* out) { *out = v; }
inline void narrow(float v, bf16* out) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  *out = (bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/* What one step of a product over K takes from each side: one fp32, or a pair of bf16 in one part or one after the
 * other. A sum takes the parts in order. The left side of several parts may be fp32 that was bf16: rows that many columns
 * multiply are kept as `Left`. */
template <class T>
struct Operand;
template <>
struct Operand<float> {
  enum { STEP = 1, PARTS_OF_STEP = 1 };
  typedef F16 Value;
  typedef float Left;
  static inline void keep(Left* to, F16 v) { store(to, v); }
  static inline Value row(const float* p, int) { return load(p); }
  static inline Value broadcast(const float* p, int) { return splat(*p); }
  static inline F16 accumulate(F16 sum, Value a, Value b) { return fma(a, b, sum); }
};
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
template <>
struct Operand<bf16> {
  enum { STEP = 2, PARTS_OF_STEP = 1 };
  typedef P16 Value;
  typedef bf16 Left;
  static inline void keep(Left* to, F16 v) { store(to, v); }
  static inline Value row(const bf16* p, int) { return load_pairs(p); }
  static inline Value broadcast(const bf16* p, int) { return splat_pair(p); }
  static inline F16 accumulate(F16 sum, Value a, Value b) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a);
#else
    SW_EACH_PART sum.part[i] =
        (Lanes)vbfdotq_f32((float32x4_t)sum.part[i], (bfloat16x8_t)a.part[i], (bfloat16x8_t)b.part[i]);
    return sum;
#endif
  }
};
#else
template <>
struct Operand<bf16> {
  enum { STEP = 2, PARTS_OF_STEP = 2 };
  typedef F16 Value;
  typedef float Left;
  static inline void keep(Left* to, F16 v) { store(to, high_half(rounded(v))); }
  static inline Value half(P16 v, int second) { return second ? high_half(v) : low_half(v); }
  static inline Value row(const bf16* p, int part) { return half(load_pairs(p), part); }
  static inline Value broadcast(const bf16* p, int part) { return half(splat_pair_again(p), part); }
  static inline Value broadcast(const float* p, int part) { return splat(p[part]); }
  static inline F16 accumulate(F16 sum, Value a, Value b) { return fma_in_place(a, b, sum); }
};
#endif
