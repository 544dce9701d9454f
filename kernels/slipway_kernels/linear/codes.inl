/* How small integers lie in a packed weight: packing them, and taking them apart again.
 *
 * W lies in blocks of 32 rows. A block is its groups in order: 32 scales, 32 minimums where there are any, then
 * for each 32 columns eight steps of four columns. Groups of 16 columns lie in pairs: the scales of both, the minimums
 * of both, then the 32 columns. Where scales have two levels, the second stands before each 256 columns: 32 of fp16,
 * and 32 for minimums.
 * A step of 8 bits is [32][4] bytes, each the code + 128. The four columns stand in the order 0, 2, 1, 3: the even
 * bytes are two neighbours, as words of 16 bits, and so are the odd ones.
 * Narrower codes lie in planes [16][4] of bytes, with the columns in the same order. A plane has 4, 2 or 1 bits of the
 * codes of 1, 2 or 4 steps: from the lowest bit on those of row r and of row r + 16, step by step. The planes of the
 * lower bits come first: four bits, or two of codes of 2 and 3 bits. Those of the upper bits, if there are any, follow
 * behind all eight steps. Entries of a table are numbered by 4 bits, and stand there + 128. */

alignas(16) static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                  129, 141, 153, 166, 181, 197, 217, 241};
/* Twice the numbers: scales are half. */
alignas(16) static const uint8_t e2m1_table[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                   128, 127, 126, 125, 124, 122, 120, 116};
static inline const uint8_t* table_of(int dtype) {
  return dtype == SW_IQ4 ? iq4_table : dtype == SW_E2M1 ? e2m1_table : nullptr;
}
/* Bits of a code in the first planes, and in those behind them. */
constexpr int lower_bits(int dtype) { return sw_code_bits(dtype) < 4 ? 2 : 4; }
constexpr int upper_bits(int dtype) { return dtype == SW_INT8 ? 0 : sw_code_bits(dtype) - lower_bits(dtype); }
/* Steps that share a plane of so many bits. */
constexpr int steps_of_plane(int bits) { return 4 / bits; }
/* Of the first planes of all steps. */
constexpr int lower_bytes(int dtype) { return lower_bits(dtype) * 128; }
constexpr bool is_table(int dtype) { return dtype == SW_IQ4 || dtype == SW_E2M1; }
/* What a code of 0 means without minimums, negated. */
constexpr int zero_code(int dtype) { return is_table(dtype) ? 128 : 1 << (sw_code_bits(dtype) - 1); }

/* The byte of a step in which column c of its four stands. */
static inline int place_of(int c) { return (c & 1) << 1 | c >> 1; }

/* Four bytes, each where `place_of` has it. */
static inline uint32_t in_place(uint32_t four) {
  return (four & 0xff0000ffu) | (four >> 8 & 0x0000ff00u) | (four << 8 & 0x00ff0000u);
}

static inline size_t scale_bytes_of(int dtype) { return dtype == SW_FP16 ? 2 : dtype == SW_FP32 ? 4 : 1; }
/* 32 scales or minimums of one level. */
static inline const char* take_scales(const char* at, int dtype, F16* scale) {
  for (int half = 0; half < 2; ++half) {
    const char* from = at + half * 16 * scale_bytes_of(dtype);
    if (dtype == SW_FP16)
      scale[half] = load_halves((const uint16_t*)from);
    else if (dtype == SW_FP32)
      scale[half] = load((const float*)from);
    else
      scale[half] = load_powers((const uint8_t*)from);
  }
  return at + 32 * scale_bytes_of(dtype);
}
static inline const char* take_supers(const char* at, F16* super) { return take_scales(at, SW_FP16, super); }

/* Scales and minimums of `groups` groups whose columns lie together. Inlined, so that tiles keep but their own case. */
__attribute__((always_inline)) static inline const char* take_factors(const char* at, int dtype, int groups,
                                                                      bool minimums, F16 (*scale)[2],
                                                                      F16 (*minimum)[2]) {
  for (int i = 0; i < groups; ++i) at = take_scales(at, dtype, scale[i]);
  for (int i = 0; minimums && i < groups; ++i) at = take_scales(at, dtype, minimum[i]);
  return at;
}

/* The same of two levels: integers of the first. */
__attribute__((always_inline)) static inline const char* take_whole_factors(const char* at, int dtype, int groups,
                                                                            bool minimums, I16 (*scale)[2],
                                                                            I16 (*minimum)[2]) {
  if (dtype == SW_NIBBLES) {
    for (int i = 0; i < groups * 2; ++i, at += 16) {
      scale[i / 2][i % 2] = load_whole_nibbles<0>((const uint8_t*)at);
      minimum[i / 2][i % 2] = load_whole_nibbles<4>((const uint8_t*)at);
    }
    return at;
  }
  for (int i = 0; i < groups * 2; ++i, at += 16) scale[i / 2][i % 2] = load_whole((const int8_t*)at);
  for (int i = 0; minimums && i < groups * 2; ++i, at += 16) minimum[i / 2][i % 2] = load_whole((const int8_t*)at);
  return at;
}

/* 64 bytes: half a step of 8 bits, or a plane; those `ahead` bytes behind it will be wanted soon. */
static inline P16 take_plane(const char*& at, size_t ahead = SW_PREFETCH) {
  P16 bytes = load_pairs((const bf16*)at);
  __builtin_prefetch(at + ahead);
  at += 64;
  return bytes;
}

/* Planes from which the bits of a step are next. */
struct Planes {
  P16 lower, upper;
};

/* The codes of a step: [rows 0 to 15, 16 to 31][columns 0 and 1, 2 and 3]. uppers: where the planes of upper bits lie.
 * planes: those of the step before it. Inlined, for codes and planes are to stay in registers. */
template <int DTYPE>
__attribute__((always_inline)) static inline void take_codes(const char*& at, const char* uppers, int step,
                                                             Planes& planes, P16 (*codes)[2],
                                                             size_t ahead = SW_PREFETCH) {
  if constexpr (DTYPE == SW_INT8) {
    P16 bytes = take_plane(at, ahead);
    codes[0][0] = field<0, 8>(bytes), codes[0][1] = field<8, 8>(bytes);
    bytes = take_plane(at, ahead);
    codes[1][0] = field<0, 8>(bytes), codes[1][1] = field<8, 8>(bytes);
  } else {
    enum { LOWER = lower_bits(DTYPE), UPPER = upper_bits(DTYPE) };
    if (step % steps_of_plane(LOWER) == 0)
      planes.lower = take_plane(at, ahead);
    else
      planes.lower = shifted_down<2 * LOWER>(planes.lower);
    P16 bytes = planes.lower;
    if constexpr (UPPER == 0 && !is_table(DTYPE)) {
      codes[0][0] = field<0, LOWER>(bytes), codes[0][1] = field<8, LOWER>(bytes);
      codes[1][0] = field<LOWER, LOWER>(bytes), codes[1][1] = field<8 + LOWER, LOWER>(bytes);
    } else {
      P16 low, high;
      if constexpr (is_table(DTYPE)) {
        low = entries<0>(bytes, table_of(DTYPE)), high = entries<4>(bytes, table_of(DTYPE));
      } else {
        if (step % steps_of_plane(UPPER) == 0) {
          const char* from = uppers + step / steps_of_plane(UPPER) * 64;
          planes.upper = take_plane(from, ahead);
        } else {
          planes.upper = shifted_down<2 * UPPER>(planes.upper);
        }
        low = joined<LOWER, UPPER, 0>(bytes, planes.upper), high = joined<LOWER, UPPER, 1>(bytes, planes.upper);
      }
      codes[0][0] = field<0, 8>(low), codes[0][1] = field<8, 8>(low);
      codes[1][0] = field<0, 8>(high), codes[1][1] = field<8, 8>(high);
    }
  }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* The plane of a step's bits, which are its lowest. */
template <int BITS>
static inline P16 plane_of(const char* planes, int step) {
  const char* from = planes + step / steps_of_plane(BITS) * 64;
  __builtin_prefetch(from + SW_PREFETCH);
  P16 plane = load_pairs((const bf16*)from);
  SW_EACH_PART plane.part[i] >>= step % steps_of_plane(BITS) * 2 * BITS;
  return plane;
}

/* The codes of a step in bytes: those of rows 0 to 15, or of 16 to 31. */
template <int DTYPE, int HALF>
static inline P16 code_bytes(const char* at, const char* uppers, int step) {
  if constexpr (DTYPE == SW_INT8) {
    __builtin_prefetch(at + step * 128 + HALF * 64 + SW_PREFETCH);
    return load_pairs((const bf16*)(at + step * 128 + HALF * 64));
  } else {
    enum { LOWER = lower_bits(DTYPE), UPPER = upper_bits(DTYPE) };
    P16 lower = plane_of<LOWER>(at, step);
    if constexpr (is_table(DTYPE))
      return entries<4 * HALF>(lower, table_of(DTYPE));
    else if constexpr (UPPER == 0)
      return joined<LOWER, 0, HALF>(lower, lower);
    else
      return joined<LOWER, UPPER, HALF>(lower, plane_of<UPPER>(uppers, step));
  }
}
#endif

/* The codes of 32 columns in bytes, as those of 8 bits stand. */
template <int DTYPE>
static void widen_block(const char* at, char* to) {
  const char* uppers = at + lower_bytes(DTYPE);
  Planes planes;
  for (int step = 0; step < 8; ++step, to += 128) {
    P16 codes[2][2];
    take_codes<DTYPE>(at, uppers, step, planes, codes);
    for (int half = 0; half < 2; ++half) store_pairs(to + half * 64, with_odd_bytes(codes[half][0], codes[half][1]));
  }
}

[[maybe_unused]] static void widen_codes(int dtype, const char* at, char* to) {
  switch (dtype) {
    case SW_INT2: return widen_block<SW_INT2>(at, to);
    case SW_INT3: return widen_block<SW_INT3>(at, to);
    case SW_INT4: return widen_block<SW_INT4>(at, to);
    case SW_INT5: return widen_block<SW_INT5>(at, to);
    case SW_INT6: return widen_block<SW_INT6>(at, to);
    case SW_IQ4: return widen_block<SW_IQ4>(at, to);
    case SW_E2M1: return widen_block<SW_E2M1>(at, to);
    default: memcpy(to, at, 1024);
  }
}

/* A row's scale or minimum among its block's 32; returns where what follows them lies. */
static inline char* put_scale(char* at, int row, const void* scale, size_t bytes) {
  memcpy(at + row * bytes, scale, bytes);
  return at + 32 * bytes;
}

/* BITS of each code of eight steps, those from `from` on, into their planes. */
template <int BITS>
static inline void put_bits(char* planes, int row, const uint32_t* steps, int from) {
  const uint32_t mask = ((1u << BITS) - 1) * 0x01010101u;
  for (int step = 0; step < 8; ++step) {
    char* plane = planes + step / steps_of_plane(BITS) * 64 + row % 16 * 4;
    int to = (step % steps_of_plane(BITS) * 2 + row / 16) * BITS;
    uint32_t four;
    memcpy(&four, plane, 4);
    four = (four & ~(mask << to)) | (steps[step] >> from & mask) << to;
    memcpy(plane, &four, 4);
  }
}

/* Up to 32 columns of a row, padded with zeros; returns where the next 32 lie. */
static inline char* put_codes(char* at, int row, int dtype, const uint8_t* codes, int columns) {
  uint32_t steps[8] = {};
  if (columns >= 32)
    memcpy(steps, codes, 32);
  else
    memcpy(steps, codes, columns);
  for (int step = 0; step < 8; ++step) steps[step] = in_place(steps[step]);
  int lower = lower_bits(dtype), upper = upper_bits(dtype);
  if (dtype == SW_INT8)
    for (int step = 0; step < 8; ++step) {
      uint32_t four = steps[step] ^ 0x80808080u;
      memcpy(at + step * 128 + row * 4, &four, 4);
    }
  else if (lower == 2)
    put_bits<2>(at, row, steps, 0);
  else
    put_bits<4>(at, row, steps, 0);
  if (upper == 1) put_bits<1>(at + lower_bytes(dtype), row, steps, lower);
  if (upper == 2) put_bits<2>(at + lower_bytes(dtype), row, steps, lower);
  return at + sw_codes_bytes(dtype);
}

/* Rows into the packed layout. codes [rows, code_stride] as in slipway.h; scales and minimums [rows, groups] in
 * the weight's type of scales, which has one level. */
static void pack_codes(const sw_weight& w, const uint8_t* codes, size_t code_stride, const void* scales,
                       const void* minimums, int rows, const int32_t* destination) {
  if (w.dtype == SW_E4M3) return pack_narrow(w, codes, code_stride, (const float*)scales, rows, destination);
  size_t scale_bytes = scale_bytes_of(w.scale_dtype), groups = (w.k + w.group - 1) / w.group;
  int width = sw_has_halves(w) ? 32 : w.group;
  const char none[4] = {};
  for (int i = 0; i < rows; ++i) {
    int row = destination[i] % 32;
    char* at = (char*)w.at + destination[i] / 32 * sw_block_bytes(w);
    const uint8_t* code = codes + i * code_stride;
    for (int first = 0; first < w.k; first += width) {
      int end = w.k - first < width ? w.k : first + width;
      for (int kind = 0; kind < (w.minimums ? 2 : 1); ++kind) {
        const char* factors = (const char*)(kind == 0 ? scales : minimums) + i * groups * scale_bytes;
        for (int k = first; k < first + width; k += w.group) /* of two groups of 16 a row may lack the last */
          at = put_scale(at, row, k < w.k ? factors + k / w.group * scale_bytes : none, scale_bytes);
      }
      for (int k = first; k < end; k += 32) at = put_codes(at, row, w.dtype, code + k, end - k);
    }
  }
}

/* One row's bits of column c of 32 in the planes that have them. */
static inline int bits_at(const char* planes, int bits, int row, int c) {
  int step = c / 4, together = steps_of_plane(bits);
  uint8_t byte = (uint8_t)planes[step / together * 64 + row % 16 * 4 + place_of(c % 4)];
  return byte >> (step % together * 2 + row / 16) * bits & ((1 << bits) - 1);
}

/* Column c of 32, of one of 32 rows. */
static inline int code_at(const sw_weight& w, const char* at, int row, int c) {
  if (w.dtype == SW_INT8) return (uint8_t)at[c / 4 * 128 + row * 4 + place_of(c % 4)] - 128;
  int lower = lower_bits(w.dtype), upper = upper_bits(w.dtype), code = bits_at(at, lower, row, c);
  if (const uint8_t* table = table_of(w.dtype)) return table[code] - 128;
  if (upper) code |= bits_at(at + lower_bytes(w.dtype), upper, row, c) << lower;
  return code - (w.minimums ? 0 : zero_code(w.dtype));
}

/* One row of W in fp32, times `factor`. */
static void read_codes(const sw_weight& w, int row, float factor, float* out) {
  int blocks = (w.k + 31) / 32, group_blocks = (w.group + 31) / 32, groups = sw_has_halves(w) ? 2 : 1;
  const char* at = (const char*)w.at + row / 32 * sw_block_bytes(w);
  F16 scale[2][2], minimum[2][2] = {}, super[2], super_minimum[2];
  alignas(64) float scales[2][32], minimums[2][32]; /* of one group, or of two of 16 columns */
  row %= 32;
  for (int block = 0; block < blocks; ++block) {
    if (sw_has_supers(w.scale_dtype) && block % (SW_SUPER / 32) == 0) {
      at = take_supers(at, super);
      if (w.minimums) at = take_supers(at, super_minimum);
    }
    if (block % group_blocks == 0) {
      if (sw_has_supers(w.scale_dtype)) {
        I16 factor[2][2], lowest[2][2];
        at = take_whole_factors(at, w.scale_dtype, groups, w.minimums, factor, lowest);
        for (int i = 0; i < groups * 2; ++i) {
          scale[i / 2][i % 2] = to_float(factor[i / 2][i % 2]) * super[i % 2];
          if (w.minimums) minimum[i / 2][i % 2] = to_float(lowest[i / 2][i % 2]) * super_minimum[i % 2];
        }
      } else {
        at = take_factors(at, w.scale_dtype, groups, w.minimums, scale, minimum);
      }
      memcpy(scales, scale, sizeof(scales));
      memcpy(minimums, minimum, sizeof(minimums));
    }
    int count = w.k - block * 32 < 32 ? w.k - block * 32 : 32;
    for (int c = 0; c < count; ++c) {
      int group = groups == 2 ? c / 16 : 0;
      out[block * 32 + c] = (scales[group][row] * (float)code_at(w, at, row, c) + minimums[group][row]) * factor;
    }
    at += sw_codes_bytes(w.dtype);
  }
}
