/* Sixteen int32 lanes, each the sum of products of two codes and two activations of 16 bits at a time. All sums
 * are exact, so every instruction set and every blocking gives the same bits.
 *
 * Included after vector.h; the same rules. Codes and activations travel as P16: sixteen lanes of two words; with ARM's
 * 8-bit matrices of four bytes, see dot_bytes. */

inline float half_to_float(uint16_t half) {
  uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
  float value;
  memcpy(&value, &bits, 4);
  value *= 0x1p112f; /* shifts the exponent's bias, subnormals included */
  memcpy(&bits, &value, 4);
  if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
  bits |= (uint32_t)(half & 0x8000) << 16;
  memcpy(&value, &bits, 4);
  return value;
}

#if defined(__AVX512F__)

typedef __m512i I16;

inline I16 splat_whole(const int32_t* p) { return _mm512_set1_epi32(*p); }
inline I16 no_whole() { return _mm512_setzero_si512(); }
inline F16 to_float(I16 v) { return _mm512_cvtepi32_ps(v); }
/* Of each word the bits from SHIFT on. */
template <int SHIFT, int BITS>
inline P16 field(P16 v) {
  if (SHIFT > 0) v = _mm512_srli_epi16(v, SHIFT);
  return SHIFT + BITS == 16 ? v : _mm512_and_si512(v, _mm512_set1_epi16((1 << BITS) - 1));
}
inline F16 load_halves(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
/* Sixteen bytes, with their signs. */
inline I16 load_whole(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
/* Four bits of each of sixteen bytes, those from SHIFT on. */
template <int SHIFT>
inline I16 load_whole_nibbles(const uint8_t* p) {
  __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm512_and_si512(_mm512_srli_epi32(bytes, SHIFT), _mm512_set1_epi32(15));
}
inline I16 plus(I16 a, I16 b) { return _mm512_add_epi32(a, b); }
inline I16 minus(I16 a, I16 b) { return _mm512_sub_epi32(a, b); }
inline I16 times(I16 a, I16 b) { return _mm512_mullo_epi32(a, b); }
/* Words: v in both of a lane; 512 · v and v; the same one everywhere. */
inline P16 both_words(I16 v) {
  return _mm512_or_si512(_mm512_slli_epi32(v, 16), _mm512_and_si512(v, _mm512_set1_epi32(0xffff)));
}
inline P16 sum_words(I16 v) {
  return _mm512_or_si512(_mm512_slli_epi32(v, 16), _mm512_and_si512(_mm512_slli_epi32(v, 9), _mm512_set1_epi32(0xffff)));
}
inline P16 repeated_word(int v) { return _mm512_set1_epi16((short)v); }
inline P16 minus_words(P16 a, P16 b) { return _mm512_sub_epi16(a, b); }
inline P16 times_words(P16 a, P16 b) { return _mm512_mullo_epi16(a, b); }
/* 2^(e - 128) of sixteen bytes: a product of two, for it may be subnormal. */
inline F16 load_powers(const uint8_t* p) {
  __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)), half = _mm512_srli_epi32(e, 1);
  __m512i a = _mm512_add_epi32(half, _mm512_set1_epi32(63));
  __m512i b = _mm512_add_epi32(_mm512_sub_epi32(e, half), _mm512_set1_epi32(63));
  return _mm512_castsi512_ps(_mm512_slli_epi32(a, 23)) * _mm512_castsi512_ps(_mm512_slli_epi32(b, 23));
}
/* Each byte has LOWER bits of `lower`, and above them UPPER bits of `upper`: the first ones, or the SECOND. */
template <int LOWER, int UPPER, int SECOND>
inline P16 joined(P16 lower, P16 upper) {
  lower = _mm512_and_si512(_mm512_srli_epi32(lower, SECOND * LOWER), _mm512_set1_epi8((1 << LOWER) - 1));
  upper = _mm512_slli_epi32(upper, LOWER - SECOND * UPPER);
  return _mm512_or_si512(lower, _mm512_and_si512(upper, _mm512_set1_epi8(((1 << UPPER) - 1) << LOWER)));
}
template <int BITS>
inline P16 shifted_down(P16 v) { return _mm512_srli_epi32(v, BITS); }
/* Words of two bytes each: the lower from `even`, the upper from `odd`, whose words are below 256. */
inline P16 with_odd_bytes(P16 even, P16 odd) { return _mm512_or_si512(even, _mm512_slli_epi32(odd, 8)); }
inline void store_pairs(char* p, P16 v) { _mm512_storeu_si512(p, v); }
/* The entries of a table that the low or the high halves of all bytes number. */
template <int SHIFT>
inline P16 entries(P16 v, const uint8_t* table) {
  v = _mm512_and_si512(_mm512_srli_epi32(v, SHIFT), _mm512_set1_epi8(15));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), v);
}
/* Compared as integers, in which NaN is above infinity. */
inline float largest_magnitude(F16 a, F16 b) {
  __m512i both = _mm512_max_epi32(_mm512_castps_si512(magnitude(a)), _mm512_castps_si512(magnitude(b)));
  int32_t largest = _mm512_reduce_max_epi32(both);
  float value;
  memcpy(&value, &largest, 4);
  return value;
}
/* Thirty-two values to the nearest integers, which fit sixteen bits; the sums of both halves. */
inline void store_codes(int16_t* p, F16 low, F16 high, int32_t* sums) {
  __m512i a = _mm512_cvtps_epi32(low), b = _mm512_cvtps_epi32(high);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a));
  _mm256_storeu_si256((__m256i*)(p + 16), _mm512_cvtepi32_epi16(b));
  sums[0] = _mm512_reduce_add_epi32(a), sums[1] = _mm512_reduce_add_epi32(b);
}
inline I16 load_sums(const int32_t* p) { return _mm512_loadu_si512(p); }
/* 256 · above + below */
inline I16 with_byte(I16 above, I16 below) { return _mm512_add_epi32(_mm512_slli_epi32(above, 8), below); }
/* Thirty-two words into their upper and their lower bytes; of each four the second and the third change places. */
inline void split_words(const int16_t* words, int8_t* upper, uint8_t* lower) {
  __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15));
  __m512i bytes = _mm512_shuffle_epi8(_mm512_loadu_si512(words), order);
  bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
  _mm256_storeu_si256((__m256i*)lower, _mm512_castsi512_si256(bytes));
  _mm256_storeu_si256((__m256i*)upper, _mm512_extracti64x4_epi64(bytes, 1));
}
inline I16 dot_words(I16 sum, P16 codes, P16 x) {
#if defined(__AVX512VNNI__)
  /* Written out, for the compiler copies sums from register to register around a loop. */
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
  return sum;
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(codes, x));
#endif
}

#else

struct I16 {
  Bits part[PARTS];
};

inline I16 splat_whole(const int32_t* p) {
  I16 r;
  SW_EACH_PART r.part[i] = *p - (Bits){};
  return r;
}
inline I16 no_whole() { return I16{}; }
SW_PARTWISE(to_float, (I16 v), __builtin_convertvector(v.part[i], Lanes))
template <int SHIFT, int BITS>
inline P16 field(P16 v) {
  SW_EACH_PART v.part[i] = (v.part[i] >> SHIFT) & ((1u << BITS) - 1) * 0x10001u;
  return v;
}
inline F16 load_halves(const uint16_t* p) {
#if defined(__AVX2__)
  F16 r;
  SW_EACH_PART r.part[i] = (Lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + i * WIDTH)));
  return r;
#elif defined(__aarch64__)
  F16 r;
  SW_EACH_PART r.part[i] = (Lanes)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + i * WIDTH)));
  return r;
#else
  float lane[16];
  for (int i = 0; i < 16; ++i) lane[i] = half_to_float(p[i]);
  return load(lane);
#endif
}
typedef int8_t Octets __attribute__((vector_size(WIDTH), aligned(1), may_alias));
inline Bits widened(const int8_t* p) {
#if defined(__AVX2__)
  return (Bits)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  return __builtin_convertvector(*(const Octets*)p, Bits);
#endif
}
#define SW_INTEGERS(type, name, parameters, expression) \
  inline type name parameters {                         \
    type r;                                             \
    SW_EACH_PART r.part[i] = expression;                \
    return r;                                           \
  }
SW_INTEGERS(I16, load_whole, (const int8_t* p), widened(p + i * WIDTH))
template <int SHIFT>
SW_INTEGERS(I16, load_whole_nibbles, (const uint8_t* p), widened((const int8_t*)p + i * WIDTH) >> SHIFT & 15)
SW_INTEGERS(I16, plus, (I16 a, I16 b), (Bits)((Words)a.part[i] + (Words)b.part[i]))
SW_INTEGERS(I16, minus, (I16 a, I16 b), (Bits)((Words)a.part[i] - (Words)b.part[i]))
SW_INTEGERS(I16, times, (I16 a, I16 b), (Bits)((Words)a.part[i] * (Words)b.part[i]))
SW_INTEGERS(P16, both_words, (I16 v), (Words)v.part[i] << 16 | ((Words)v.part[i] & 0xffffu))
SW_INTEGERS(P16, sum_words, (I16 v), (Words)v.part[i] << 16 | ((Words)v.part[i] << 9 & 0xffffu))
typedef int16_t Shorts __attribute__((vector_size(WIDTH * 4), aligned(2), may_alias));
SW_INTEGERS(P16, repeated_word, (int v), (uint32_t)(v & 0xffff) * 0x10001u - (Words){})
SW_INTEGERS(P16, minus_words, (P16 a, P16 b), (Words)((Shorts)a.part[i] - (Shorts)b.part[i]))
SW_INTEGERS(P16, times_words, (P16 a, P16 b), (Words)((Shorts)a.part[i] * (Shorts)b.part[i]))
#undef SW_INTEGERS
inline F16 load_powers(const uint8_t* p) {
  F16 r;
  SW_EACH_PART {
    Words e = (Words)widened((const int8_t*)p + i * WIDTH) & 0xffu, half = e >> 1;
    r.part[i] = (Lanes)((half + 63u) << 23) * (Lanes)((e - half + 63u) << 23);
  }
  return r;
}
template <int LOWER, int UPPER, int SECOND>
inline P16 joined(P16 lower, P16 upper) {
  const uint32_t low = ((1u << LOWER) - 1) * 0x01010101u, high = ((1u << UPPER) - 1) * (0x01010101u << LOWER);
  SW_EACH_PART {
    Words above = upper.part[i] << (LOWER - SECOND * UPPER);
    lower.part[i] = ((lower.part[i] >> (SECOND * LOWER)) & low) | (above & high);
  }
  return lower;
}
template <int BITS>
inline P16 shifted_down(P16 v) {
  SW_EACH_PART v.part[i] >>= BITS;
  return v;
}
inline P16 with_odd_bytes(P16 even, P16 odd) {
  SW_EACH_PART even.part[i] |= odd.part[i] << 8;
  return even;
}
inline void store_pairs(char* p, P16 v) { SW_EACH_PART *(Words*)(p + i * WIDTH * 4) = v.part[i]; }
template <int SHIFT>
inline P16 entries(P16 v, const uint8_t* table) {
  SW_EACH_PART {
    Words nibbles = (v.part[i] >> SHIFT) & 0x0f0f0f0fu;
#if defined(__AVX2__)
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    v.part[i] = (Words)_mm256_shuffle_epi8(both, (__m256i)nibbles);
#elif defined(__aarch64__)
    v.part[i] = (Words)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)nibbles);
#else
    uint8_t byte[WIDTH * 4];
    memcpy(byte, &nibbles, sizeof(byte));
    for (int j = 0; j < WIDTH * 4; ++j) byte[j] = table[byte[j]];
    memcpy(&v.part[i], byte, sizeof(byte));
#endif
  }
  return v;
}
inline float largest_magnitude(F16 a, F16 b) {
  int32_t lane[32], largest = 0;
  memcpy(lane, &a, 64);
  memcpy(lane + 16, &b, 64);
  for (int i = 0; i < 32; ++i) {
    int32_t bits = lane[i] & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float value;
  memcpy(&value, &largest, 4);
  return value;
}
#if defined(__aarch64__)
/* With 8-bit matrices the lower bytes of four columns, then the upper ones, both in the order of a step's codes. */
inline void store_codes(int16_t* p, F16 low, F16 high, int32_t* sums) {
  for (int half = 0; half < 2; ++half) {
    const F16& from = half ? high : low;
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < PARTS; i += 2) {
      int32x4_t a = vcvtnq_s32_f32((float32x4_t)from.part[i]), b = vcvtnq_s32_f32((float32x4_t)from.part[i + 1]);
      sum = vaddq_s32(sum, vaddq_s32(a, b));
      int16x8_t codes = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
#if defined(__ARM_FEATURE_MATMUL_INT8)
      alignas(16) static const uint8_t order[16] = {0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15};
      codes = vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(codes), vld1q_u8(order)));
#endif
      vst1q_s16(p + half * 16 + i * WIDTH, codes);
    }
    sums[half] = vaddvq_s32(sum);
  }
}
#else
inline void store_codes(int16_t* p, F16 low, F16 high, int32_t* sums) {
  F16 magic = splat(12582912.0f); /* 1.5 · 2^23: the integer stands in the low bits */
  F16 rounded[2] = {low + magic, high + magic};
  int32_t lane[32];
  memcpy(lane, rounded, 128);
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) {
    p[i] = (int16_t)lane[i];
    sums[i / 16] += p[i];
  }
}
#endif
inline I16 load_sums(const int32_t* p) {
  I16 r;
  SW_EACH_PART r.part[i] = *(const Bits*)(p + i * WIDTH);
  return r;
}
inline I16 with_byte(I16 above, I16 below) {
  SW_EACH_PART above.part[i] = (above.part[i] << 8) + below.part[i];
  return above;
}
inline void split_words(const int16_t* words, int8_t* upper, uint8_t* lower) {
  for (int i = 0; i < 32; ++i) {
    int at = (i & ~3) | (i & 1) << 1 | (i & 2) >> 1;
    upper[at] = (int8_t)(words[i] >> 8), lower[at] = (uint8_t)words[i];
  }
}
#if defined(__aarch64__)
inline I16 dot_words(I16 sum, P16 codes, P16 x) {
  SW_EACH_PART {
    int32x4_t c = (int32x4_t)codes.part[i], both = (int32x4_t)x.part[i];
    int32x4_t even = vmlal_s16((int32x4_t)sum.part[i], vmovn_s32(c), vmovn_s32(both));
    sum.part[i] = (Bits)vmlal_s16(even, vshrn_n_s32(c, 16), vshrn_n_s32(both, 16));
  }
  return sum;
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
/* Each lane adds four products of codes in bytes: with the lower bytes of activations to `low`, with the upper bytes to
 * `high`. The sum is low + 256 · high. x has both kinds of bytes of two steps. */
template <int STEP>
inline void dot_bytes(I16& low, I16& high, P16 codes, int8x16_t x) {
  SW_EACH_PART {
    uint8x16_t c = (uint8x16_t)codes.part[i];
    low.part[i] = (Bits)vdotq_laneq_u32((uint32x4_t)low.part[i], c, vreinterpretq_u8_s8(x), 2 * STEP);
    high.part[i] = (Bits)vusdotq_laneq_s32((int32x4_t)high.part[i], c, x, 2 * STEP + 1);
  }
}
inline I16 both_bytes(I16 low, I16 high) {
  SW_EACH_PART low.part[i] = (Bits)((Words)low.part[i] + ((Words)high.part[i] << 8));
  return low;
}
#endif
#else
/* Two products in each lane. */
inline Bits dot_part(Words codes, Words x) {
#if defined(__AVX2__)
  return (Bits)_mm256_madd_epi16((__m256i)codes, (__m256i)x);
#elif defined(__SSE2__)
  return (Bits)_mm_madd_epi16((__m128i)codes, (__m128i)x);
#else
  return (Bits)(codes & 0xffffu) * ((Bits)(x << 16) >> 16) + (Bits)(codes >> 16) * ((Bits)x >> 16);
#endif
}
inline I16 dot_words(I16 sum, P16 codes, P16 x) {
#if defined(__AVXVNNI__)
  SW_EACH_PART __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum.part[i]) : "x"(codes.part[i]), "x"(x.part[i]));
#else
  SW_EACH_PART sum.part[i] += dot_part(codes.part[i], x.part[i]);
#endif
  return sum;
}
#endif

#endif
