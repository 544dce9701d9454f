/* Floats of eight bits: e4m3 (without infinities, largest 448) and e5m2 (largest 57,344). Rounding is to the
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

/* Sixteen at once, in vectors that the compiler cuts to what the processor has. */
typedef uint8_t Codes __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t Longs __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t SignedLongs __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));

/* The bits of fp32. Numbers below the normal ones are made from integers: no denormal enters the arithmetic. */
template <class N>
static inline Longs widened(const uint8_t* from) {
  /* In two steps: GCC takes a single one apart. */
  Longs code = __builtin_convertvector(__builtin_convertvector(*(const Codes*)from, Shorts), Longs);
  Longs magnitude = code & 0x7f, sign = (code & 0x80) << 24;
  Longs normal = (magnitude << N::SHIFT) + ((uint32_t)N::BIAS << 23);
  Longs below = (Longs)(__builtin_convertvector((SignedLongs)magnitude, Floats) * N::SMALLEST);
  Longs bits = magnitude < N::LEAST_NORMAL ? below : normal;
  bits = magnitude > N::LARGEST ? Longs{} + 0x7fc00000u : bits;
  return bits | sign;
}

static inline void put_bits(Longs bits, float* out) { *(Longs*)out = bits; }
/* Exact: they have three bits of mantissa at most. */
static inline void put_bits(Longs bits, bf16* out) { *(Shorts*)out = __builtin_convertvector(bits >> 16, Shorts); }

#if defined(__AVX512BW__)
/* The same for 32 codes, in the sixteen bits that are wanted; numbers below the normal ones come from a table. */
template <class N>
static inline void widen_block(const uint8_t* from, bf16* to) {
  alignas(64) static constexpr bf16 below[2][32] = {{0, 0x3780, 0x3800, 0x3840},
                                                    {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60}};
  __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)from));
  __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(code, 7), 15);
  __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, N::SHIFT - 16), _mm512_set1_epi16(N::BIAS << 7));
  __m512i small = _mm512_permutexvar_epi16(magnitude, _mm512_load_si512(below[N::MANTISSA_BITS == 3]));
  bits = _mm512_mask_mov_epi16(bits, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(N::LEAST_NORMAL)), small);
  bits = _mm512_mask_mov_epi16(bits, _mm512_cmpgt_epu16_mask(magnitude, _mm512_set1_epi16(N::LARGEST)),
                               _mm512_set1_epi16(0x7fc0));
  _mm512_storeu_si512(to, _mm512_or_si512(bits, sign));
}
#else
template <class N>
static inline void widen_block(const uint8_t* from, bf16* to) {
  for (int i = 0; i < 32; i += 16) put_bits(widened<N>(from + i), to + i);
}
#endif
template <class N>
static inline void widen_block(const uint8_t* from, float* to) {
  for (int i = 0; i < 32; i += 16) put_bits(widened<N>(from + i), to + i);
}

/* `count` is a multiple of sixteen. */
template <class N, class T>
static inline void widen_as(const uint8_t* from, T* to, int count) {
  int i = 0;
  for (; i + 32 <= count; i += 32) widen_block<N>(from + i, to + i);
  if (i < count) put_bits(widened<N>(from + i), to + i);
}
template <class T>
static inline void widen_all(const uint8_t* from, T* to, int count, int stored) {
  if (stored == SW_E4M3)
    widen_as<Narrow<4>>(from, to, count);
  else
    widen_as<Narrow<5>>(from, to, count);
}
