/* Eight tiles of 16 rows of 64 bytes, as AMX has them; where SW_EMULATED_TILES is set, the same in memory, to the bit
 * (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS and TDPBUUD). Tiles are numbered at
 * compile time. Included after vector.h; the same rules. */

/* Rows and bytes of a row, tile by tile: what LDTILECFG reads. */
struct alignas(64) TileShapes {
  uint8_t palette = 1, first_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  inline void set(int tile, int of_rows, int of_bytes) { rows[tile] = of_rows, bytes[tile] = of_bytes; }
};
static_assert(sizeof(TileShapes) == 64, "one line of memory");

#if !defined(SW_EMULATED_TILES)

/* Into the first-level cache, as a vector is read. */
inline void read_line(const void* at) {
  __asm__ volatile("vmovdqu64 %0, %%zmm31" : : "m"(*(const char(*)[64])at) : "xmm31");
}

struct Tiles8 {
  /* All tiles are 0 afterwards. */
  inline void shape(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }
  inline void release() { __asm__ volatile("tilerelease"); }
  template <int T>
  inline void clear() { __asm__ volatile("tilezero %%tmm%c0" : : "i"(T)); }
  template <int T>
  inline void load(const void* at, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  inline void store(void* at, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride), "i"(T) : "memory");
  }
  /* C += A · B: pairs of bf16 [rows][pairs] and [pairs][columns], sums in fp32. */
  template <int C, int A, int B>
  inline void add_bf16() { __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B)); }
  /* The same of fours of bytes, int8_t or uint8_t, sums in int32. */
  template <int C, int A, int B, class X, class Y>
  inline void add_bytes() {
    constexpr bool x = X(-1) < X(0), y = Y(-1) < Y(0);
    if (x && y) __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    if (x && !y) __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    if (!x && y) __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    if (!x && !y) __asm__ volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

#else

inline void read_line(const void*) {}

class Tiles8 {
 public:
  inline void shape(const TileShapes& shapes) { now = shapes, memset(tile, 0, sizeof(tile)); }
  inline void release() {}
  template <int T>
  inline void clear() { memset(tile[T], 0, sizeof(tile[T])); }
  template <int T>
  inline void load(const void* at, size_t stride) {
    clear<T>();
    for (int i = 0; i < now.rows[T]; ++i) memcpy(tile[T][i], (const char*)at + i * stride, now.bytes[T]);
  }
  template <int T>
  inline void store(void* at, size_t stride) {
    for (int i = 0; i < now.rows[T]; ++i) memcpy((char*)at + i * stride, tile[T][i], now.bytes[T]);
  }
  /* Even and odd columns have a sum each, in the order of K, which are added at the end; what is subnormal is 0. */
  template <int C, int A, int B>
  inline void add_bf16() {
    for (int i = 0; i < now.rows[C]; ++i)
      for (int n = 0; n < now.bytes[C] / 4; ++n) {
        float sum[2] = {};
        for (int k = 0; k < now.bytes[A] / 4; ++k)
          for (int odd = 0; odd < 2; ++odd)
            sum[odd] = normal(fmaf(wide(A, i, 2 * k + odd), wide(B, k, 2 * n + odd), sum[odd]));
        float to;
        memcpy(&to, tile[C][i] + 4 * n, 4);
        to = normal(normal(to) + normal(sum[0] + sum[1]));
        memcpy(tile[C][i] + 4 * n, &to, 4);
      }
  }
  template <int C, int A, int B, class X, class Y>
  inline void add_bytes() {
    for (int i = 0; i < now.rows[C]; ++i)
      for (int n = 0; n < now.bytes[C] / 4; ++n) {
        uint32_t to; /* wraps, as the instruction does */
        memcpy(&to, tile[C][i] + 4 * n, 4);
        for (int k = 0; k < now.bytes[A]; ++k)
          to += (uint32_t)((int32_t)(X)tile[A][i][k] * (int32_t)(Y)tile[B][k / 4][4 * n + k % 4]);
        memcpy(tile[C][i] + 4 * n, &to, 4);
      }
  }

 private:
  TileShapes now;
  alignas(64) uint8_t tile[8][16][64];
  static inline float normal(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }
  inline float wide(int t, int i, int at) const {
    bf16 v;
    memcpy(&v, tile[t][i] + 2 * at, 2);
    return normal(widen(v));
  }
};

#endif

/* While it lives, what is subnormal counts as 0 in this thread's vectors, as it does in a tile. */
class WithoutSubnormals {
 public:
  inline WithoutSubnormals() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }
  inline ~WithoutSubnormals() { _mm_setcsr(before); }

 private:
  unsigned before;
};
