/* What is done to every logit: loops that the compiler turns into vectors, once for each instruction set.
 *
 * The same bits on every machine: element-wise fp32 without contraction, an exponential of our own, and masses
 * that are integers, so that no sum depends on its order. */
#ifndef SLIPWAY_SAMPLING_LANES_H
#define SLIPWAY_SAMPLING_LANES_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

/* The build may define EACH_ISA away, to compile for one instruction set. */
#if !defined(EACH_ISA) && defined(__x86_64__) && __GNUC__ >= 12
/* v4 and not avx512f: it multiplies 64-bit lanes in one instruction, which draws from 49,152 tokens in 150 and
 * not 250 µs on Zen 4. */
#define EACH_ISA __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#elif !defined(EACH_ISA) && defined(__x86_64__)
#define EACH_ISA __attribute__((target_clones("default", "avx2", "avx512f")))
#elif !defined(EACH_ISA)
#define EACH_ISA
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int32_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
/* A mass is exp(x) in units of 2^-42: 2^21 tokens of mass 1 still add up below 2^63. */
constexpr double kMassUnit = 0x1p42;
/* exp(x) is less than half a unit below this. */
constexpr float kNoMass = -31.0f;

/* Orders as the floats do; -0 equals +0. */
INLINE int32_t key_of(float value) {
  const int32_t bits = __builtin_bit_cast(int32_t, value + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

INLINE float value_of(int32_t key) { return __builtin_bit_cast(float, key ^ ((key >> 31) & 0x7fffffff)); }

const int32_t kLowestFinite = key_of(-kLargest);

/* exp of x <= 0, relative error below 2e-7; what is below -64 counts as -64. The bound is taken on the bits: from
 * a comparison of floats gcc makes a branch, and then no vectors. */
INLINE float exponential(float x) {
  x = __builtin_bit_cast(float, std::min(__builtin_bit_cast(uint32_t, x), __builtin_bit_cast(uint32_t, -64.0f)));
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
}

/* Adding 2^52 leaves the rounded integer in the low bits of the double. */
INLINE uint64_t mass_of(float x) {
  const double shifted = static_cast<double>(exponential(x)) * kMassUnit + 0x1p52;
  return __builtin_bit_cast(uint64_t, shifted) - 0x4330000000000000u;
}

INLINE float at_most_finite(float logit) {
  return __builtin_bit_cast(float, std::min(__builtin_bit_cast(int32_t, logit), __builtin_bit_cast(int32_t, kLargest)));
}

/* (logit - top) / temperature, where +inf counts as the largest finite number. */
INLINE float scaled(float logit, float top, float inverse) {
  return (at_most_finite(logit) - at_most_finite(top)) * inverse;
}

/* First word of Philox4x32-10 (Salmon et al. 2011): key = seed, counter = (position, token, 0, 0). */
INLINE uint32_t philox(uint64_t seed, uint32_t position, uint32_t token) {
  uint32_t c0 = position, c1 = token, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t b = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

INLINE int32_t block_scan(const float* row, int32_t count, int32_t* unordered) {
  int32_t top = std::numeric_limits<int32_t>::min(), nan = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t key = key_of(row[i]);
    top = key > top ? key : top;
    nan |= row[i] != row[i];
  }
  *unordered |= nan;
  return top;
}

/* Notes each block's largest key; says whether the row holds a NaN. */
EACH_ISA bool scan(const float* row, int32_t vocab, int32_t* block_max) {
  int32_t unordered = 0, start = 0;
  for (; start + kBlock <= vocab; start += kBlock) *block_max++ = block_scan(row + start, kBlock, &unordered);
  if (start < vocab) *block_max = block_scan(row + start, vocab - start, &unordered);
  return unordered != 0;
}

EACH_ISA uint64_t sum_mass(const float* row, int32_t count, float top, float inverse) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += mass_of(scaled(row[i], top, inverse));
  return sum;
}

EACH_ISA void weigh(const float* x, int32_t count, uint64_t* mass) {
  for (int32_t i = 0; i < count; ++i) mass[i] = mass_of(x[i]);
}

/* Of mass · x, each product rounded down: the same sum in any order. x may be -inf where there is no mass. */
EACH_ISA int64_t sum_weighed(const float* x, const uint64_t* mass, int32_t count) {
  int64_t sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    const double finite = mass[i] == 0 ? 0.0 : static_cast<double>(x[i]);
    sum += static_cast<int64_t>(std::floor(static_cast<double>(mass[i]) * finite));
  }
  return sum;
}

EACH_ISA void scale(float* row, int32_t count, float top, float inverse) {
  for (int32_t i = 0; i < count; ++i) row[i] = scaled(row[i], top, inverse);
}

/* Fills the tokens' random words; returns the largest. */
EACH_ISA uint32_t draw_words(uint64_t seed, uint32_t position, const int32_t* ids, uint32_t* words) {
  uint32_t largest = 0;
  for (int32_t i = 0; i < kBlock; ++i) {
    words[i] = philox(seed, position, static_cast<uint32_t>(ids[i]));
    largest = words[i] > largest ? words[i] : largest;
  }
  return largest;
}

/* Tokens that rank before `token`: greater, or equal with a lower id. */
EACH_ISA int32_t count_before(const float* row, int32_t vocab, int32_t token) {
  const float value = row[token];
  int32_t count = 0;
  for (int32_t i = 0; i < token; ++i) count += row[i] >= value;
  for (int32_t i = token + 1; i < vocab; ++i) count += row[i] > value;
  return count;
}

}  // namespace

#endif
