/* Rows of GGUF's block types into packed weights, with exactly their numbers. Layouts and formulas are ggml's
 * (ggml/src/ggml-common.h, ggml-quants.c). */

/* A block as packed weights have it: codes as put_codes takes them; scales of the first level, if there are two, and
 * the second, which is the only one of blocks of 32 columns. */
struct Unpacked {
  uint8_t codes[SW_SUPER];
  uint8_t scales[16], minimums[8]; /* of nibbles, `scales` has both */
  uint16_t super, super_minimum;
};

struct BlockType {
  int columns, bytes;
  void (*unpack)(const uint8_t* block, Unpacked& out);
};

static inline uint16_t half_at(const uint8_t* at) {
  uint16_t half;
  memcpy(&half, at, 2);
  return half;
}

/* 32 columns of four bits: the low halves of all bytes, then the high ones. */
static inline void unpack_halves(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = from[i] & 15, codes[i + 16] = from[i] >> 4;
}

template <bool MINIMUMS>
static void unpack_4(const uint8_t* b, Unpacked& out) {
  out.super = half_at(b);
  if (MINIMUMS) out.super_minimum = half_at(b + 2);
  unpack_halves(b + (MINIMUMS ? 4 : 2), out.codes);
}

template <bool MINIMUMS>
static void unpack_5(const uint8_t* b, Unpacked& out) {
  out.super = half_at(b);
  if (MINIMUMS) out.super_minimum = half_at(b + 2);
  const uint8_t* fifth = b + (MINIMUMS ? 4 : 2);
  unpack_halves(fifth + 4, out.codes);
  for (int i = 0; i < 32; ++i) out.codes[i] |= (fifth[i / 8] >> i % 8 & 1) << 4;
}

static void unpack_8(const uint8_t* b, Unpacked& out) {
  out.super = half_at(b);
  memcpy(out.codes, b + 2, 32);
}

/* Scales and minimums of six bits each. */
static inline void unpack_k_scales(const uint8_t* packed, Unpacked& out) {
  for (int i = 0; i < 4; ++i) {
    out.scales[i] = packed[i] & 63, out.minimums[i] = packed[i + 4] & 63;
    out.scales[i + 4] = (packed[i + 8] & 15) | packed[i] >> 6 << 4;
    out.minimums[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
  }
}

template <bool FIVE>
static void unpack_k(const uint8_t* b, Unpacked& out) {
  out.super = half_at(b), out.super_minimum = half_at(b + 2) ^ 0x8000; /* it is taken away */
  unpack_k_scales(b + 4, out);
  const uint8_t *fifth = b + 16, *quarters = fifth + (FIVE ? 32 : 0);
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i) {
      uint8_t code = quarters[group / 2 * 32 + i] >> group % 2 * 4 & 15;
      out.codes[group * 32 + i] = FIVE ? code | (fifth[i] >> group & 1) << 4 : code;
    }
}

/* 256 columns of two bits: of each 32 bytes the lowest bits of all, then the next ones. */
static inline void unpack_twos(const uint8_t* from, uint8_t* codes) {
  for (int row = 0; row < 8; ++row) /* of 32 columns */
    for (int i = 0; i < 32; ++i) codes[row * 32 + i] = from[row / 4 * 32 + i] >> row % 4 * 2 & 3;
}

static void unpack_2(const uint8_t* b, Unpacked& out) {
  memcpy(out.scales, b, 16);
  unpack_twos(b + 16, out.codes);
  out.super = half_at(b + 80), out.super_minimum = half_at(b + 82) ^ 0x8000; /* it is taken away */
}

static void unpack_3(const uint8_t* b, Unpacked& out) {
  const uint8_t *third = b, *scales = b + 96;
  unpack_twos(b + 32, out.codes);
  for (int i = 0; i < SW_SUPER; ++i) out.codes[i] |= (third[i % 32] >> i / 32 & 1) << 2;
  for (int i = 0; i < 16; ++i) {
    int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    out.scales[i] = (uint8_t)((low | high << 4) - 32);
  }
  out.super = half_at(b + 108);
}

static void unpack_6(const uint8_t* b, Unpacked& out) {
  const uint8_t *low = b, *high = b + 128;
  for (int row = 0; row < 8; ++row) { /* of 32 columns */
    int half = row / 4, part = row % 4;
    for (int i = 0; i < 32; ++i)
      out.codes[row * 32 + i] = (low[half * 64 + part % 2 * 32 + i] >> part / 2 * 4 & 15) |
                                (high[half * 32 + i] >> part * 2 & 3) << 4;
  }
  memcpy(out.scales, b + 192, 16);
  out.super = half_at(b + 208);
}

static void unpack_iq4_xs(const uint8_t* b, Unpacked& out) {
  out.super = half_at(b);
  uint16_t high = half_at(b + 2);
  for (int group = 0; group < 8; ++group) {
    int low = b[4 + group / 2] >> group % 2 * 4 & 15;
    out.scales[group] = (uint8_t)((low | (high >> 2 * group & 3) << 4) - 32);
    unpack_halves(b + 8 + group * 16, out.codes + group * 32);
  }
}

static void unpack_mxfp4(const uint8_t* b, Unpacked& out) {
  out.scales[0] = b[0];
  unpack_halves(b + 1, out.codes);
}

static const BlockType block_types[SW_BLOCK_TYPES] = {
    {32, 18, unpack_4<false>},  {32, 20, unpack_4<true>}, {32, 22, unpack_5<false>},  {32, 24, unpack_5<true>},
    {32, 34, unpack_8},         {256, 144, unpack_k<false>}, {256, 176, unpack_k<true>}, {256, 210, unpack_6},
    {32, 18, unpack_4<false>},  {256, 136, unpack_iq4_xs}, {32, 17, unpack_mxfp4},
    {256, 84, unpack_2},        {256, 110, unpack_3},
};

static void pack_blocks(const sw_weight& w, int type, const uint8_t* blocks, size_t row_bytes, int rows,
                        const int32_t* destination) {
  const BlockType& kind = block_types[type];
  bool has_supers = sw_has_supers(w.scale_dtype), bytes_of_minimums = w.minimums && w.scale_dtype != SW_NIBBLES;
  int halves = sw_has_halves(w) ? 2 : 1;
  Unpacked block;
  for (int i = 0; i < rows; ++i) {
    int row = destination[i] % 32;
    char* at = (char*)w.at + destination[i] / 32 * sw_block_bytes(w);
    const uint8_t* from = blocks + i * row_bytes;
    for (int k = 0; k < w.k; k += kind.columns, from += kind.bytes) {
      kind.unpack(from, block);
      if (has_supers) {
        at = put_scale(at, row, &block.super, 2);
        if (w.minimums) at = put_scale(at, row, &block.super_minimum, 2);
      }
      for (int group = 0; group < kind.columns / 32; ++group) {
        if (w.scale_dtype == SW_FP16) {
          at = put_scale(at, row, &block.super, 2);
          if (w.minimums) at = put_scale(at, row, &block.super_minimum, 2);
        } else {
          for (int half = 0; half < halves; ++half)
            at = put_scale(at, row, block.scales + group * halves + half, 1);
          if (bytes_of_minimums) at = put_scale(at, row, block.minimums + group, 1);
        }
        at = put_codes(at, row, w.dtype, block.codes + group * 32, 32);
      }
    }
  }
}
