/* Included after integers.h; the same rules.
 *
 * Floats of eight bits: e4m3 (without infinities, largest 448) and e5m2 (largest 57,344). Rounding is to the
 * nearest, ties to even, and what is too large becomes the largest.
 *
 * Format: Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433. */
template <int EXPONENT_BITS>
struct Narrow {
  static constexpr int MANTISSA_BITS = 7 - EXPONENT_BITS;
  static constexpr int SHIFT = 23 - MANTISSA_BITS;
  static constexpr int BIAS = 127 - ((1 << (EXPONENT_BITS - 1)) - 1); /* from its exponents to those of fp32 */
  static constexpr uint32_t LEAST_NORMAL = 1 << MANTISSA_BITS;        /* as a code */
  static constexpr uint32_t LARGEST = EXPONENT_BITS == 4 ? 0x7e : 0x7b;
  static constexpr uint32_t NOT_A_NUMBER = 0x7f;
  static constexpr float SMALLEST = EXPONENT_BITS == 4 ? 0x1p-9f : 0x1p-16f;
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

template <class N>
inline uint8_t narrowed_as(float value) {
  uint32_t bits = bits_of(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | N::NOT_A_NUMBER;
  uint32_t code;
  if (magnitude < (uint32_t)(N::BIAS + 1) << 23) { /* whole multiples of the smallest; adding 1.5 · 2^23 rounds */
    code = bits_of(float_of(magnitude) / N::SMALLEST + 0x1.8p23f) & 0xff;
  } else {
    uint32_t odd = magnitude >> N::SHIFT & 1;
    code = ((magnitude + ((1u << (N::SHIFT - 1)) - 1) + odd) >> N::SHIFT) - (N::BIAS << N::MANTISSA_BITS);
  }
  return sign | (code < N::LARGEST ? code : N::LARGEST);
}
inline uint8_t narrowed(float value, int stored) {
  return stored == SW_E4M3 ? narrowed_as<Narrow<4>>(value) : narrowed_as<Narrow<5>>(value);
}

/* What the codes below the normal ones are in bf16, and the bytes of that. */
template <class N>
struct BelowNormal {
  bf16 at[32] = {};
  uint8_t lower[16] = {}, upper[16] = {};
  constexpr BelowNormal() {
    for (uint32_t m = 1; m < N::LEAST_NORMAL; ++m) {
      int highest = m >= 4 ? 2 : m >= 2 ? 1 : 0;
      at[m] = (bf16)((N::BIAS + 1 - N::MANTISSA_BITS + highest) << 7 | (m << (7 - highest) & 0x7f));
      lower[m] = (uint8_t)at[m], upper[m] = (uint8_t)(at[m] >> 8);
    }
  }
};

/* Sixteen in fp32. Numbers below the normal ones are made from integers: no denormal enters the arithmetic. */
template <class N>
inline F16 load_narrow(const uint8_t* from) {
#if defined(__AVX512F__)
  __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
  __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  __m512i sign = _mm512_and_si512(code, _mm512_set1_epi32((int)0x80000000));
  __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, N::SHIFT), _mm512_set1_epi32(N::BIAS << 23));
  __m512i below = _mm512_castps_si512(_mm512_cvtepi32_ps(magnitude) * splat(N::SMALLEST));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(N::LEAST_NORMAL)), below);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(N::LARGEST)),
                               _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
#else
  F16 r;
  SW_EACH_PART {
    Bits code = widened((const int8_t*)from + i * WIDTH), magnitude = code & 0x7f;
    Bits bits = (magnitude << N::SHIFT) + (N::BIAS << 23);
    Bits below = (Bits)(__builtin_convertvector(magnitude, Lanes) * N::SMALLEST);
    bits = magnitude < (int32_t)N::LEAST_NORMAL ? below : bits;
    bits = magnitude > (int32_t)N::LARGEST ? (Bits){} + 0x7fc00000 : bits;
    r.part[i] = (Lanes)((Words)bits | ((Words)code & 0x80000000u));
  }
  return r;
#endif
}

/* Numbers of at most eight bits of precision, which bf16 has. */
inline void store_exact(float* p, F16 v) { store(p, v); }
inline void store_exact(bf16* p, F16 v) {
#if defined(__AVX512F__)
  __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(v), 16);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(upper));
#else
  SW_EACH_PART *(Halves*)(p + i * WIDTH) = __builtin_convertvector((Words)v.part[i] >> 16, Halves);
#endif
}

/* 32 of them. */
template <class N>
static inline void widen_block(const uint8_t* from, float* to) {
  store(to, load_narrow<N>(from)), store(to + 16, load_narrow<N>(from + 16));
}
#if defined(__AVX512BW__)
template <class N>
static inline void widen_block(const uint8_t* from, bf16* to) {
  alignas(64) static constexpr BelowNormal<N> below;
  __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
  __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  __m512i sign = _mm512_and_si512(code, _mm512_set1_epi16((short)0x8000));
  __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, N::SHIFT - 16), _mm512_set1_epi16(N::BIAS << 7));
  __m512i small = _mm512_permutexvar_epi16(magnitude, _mm512_load_si512(below.at));
  bits = _mm512_mask_mov_epi16(bits, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(N::LEAST_NORMAL)), small);
  bits = _mm512_mask_mov_epi16(bits, _mm512_cmpgt_epu16_mask(magnitude, _mm512_set1_epi16(N::LARGEST)),
                               _mm512_set1_epi16(0x7fc0));
  _mm512_storeu_si512(to, _mm512_or_si512(bits, sign));
}
#elif defined(__AVX2__)
/* In the sixteen bits that are wanted: half the work of fp32. */
template <class N>
static inline void widen_block(const uint8_t* from, bf16* to) {
  alignas(64) static constexpr BelowNormal<N> below;
  __m256i lower = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)below.lower));
  __m256i upper = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)below.upper));
  for (int i = 0; i < 32; i += 16) {
    __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(from + i)));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_and_si256(code, _mm256_set1_epi16((short)0x8000));
    __m256i bits = _mm256_add_epi16(_mm256_slli_epi16(magnitude, N::SHIFT - 16), _mm256_set1_epi16(N::BIAS << 7));
    __m256i small = _mm256_slli_epi16(_mm256_shuffle_epi8(upper, magnitude), 8);
    small = _mm256_or_si256(small, _mm256_shuffle_epi8(lower, magnitude)); /* of a code's upper byte, 0, it is 0 */
    bits = _mm256_blendv_epi8(bits, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(N::LEAST_NORMAL), magnitude));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi16(0x7fc0),
                              _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(N::LARGEST)));
    _mm256_storeu_si256((__m256i*)(to + i), _mm256_or_si256(bits, sign));
  }
}
#else
template <class N>
static inline void widen_block(const uint8_t* from, bf16* to) {
  store_exact(to, load_narrow<N>(from)), store_exact(to + 16, load_narrow<N>(from + 16));
}
#endif

/* `count` is a multiple of sixteen. */
template <class N, class T>
static inline void widen_as(const uint8_t* from, T* to, int count) {
  int i = 0;
  for (; i + 32 <= count; i += 32) widen_block<N>(from + i, to + i);
  if (i < count) store_exact(to + i, load_narrow<N>(from + i));
}
template <class T>
static inline void widen_all(const uint8_t* from, T* to, int count, int stored) {
  if (stored == SW_E4M3)
    widen_as<Narrow<4>>(from, to, count);
  else if (stored == SW_E5M2)
    widen_as<Narrow<5>>(from, to, count);
  else
    for (int i = 0; i < count; i += 16) store_exact(to + i, to_float(load_whole((const int8_t*)from + i)));
}
