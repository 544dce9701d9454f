/* Attention whose products go through tiles (cpu/tiles.h): keys lie as pairs of dimensions by positions, values as pairs of
 * positions by dimensions, both as a tile loads them.
 *
 * A score sums 32 dimensions at a time, a value sixteen positions, in the order of a tile, whatever the number of queries:
 * a row's result is the same alone and in a chunk. */

/* 2^x for x up to about 0; 0 below -125. Least squares of the relative error, weighted until all errors were alike. */
static inline F16 small_power_of_two(F16 x) {
  F16 whole = nearest_whole(x), r = x - whole;
  F16 p = splat(9.582854168e-3f);
  p = fma(p, r, splat(5.590643140e-2f));
  p = fma(p, r, splat(2.402409863e-1f));
  p = fma(p, r, splat(6.931241926e-1f));
  p = fma(p, r, splat(1.0f));
  return where_less(x, splat(-125.0f), zero(), times_power(p, whole));
}

class ByTiles {
 public:
  typedef bf16 Element, Left;
  static inline void keep(Left* to, F16 v) { store(to, v); }
  /* With a power of two whose relative error is 3e-6, far below that of bf16: half of the steps of exp. */
  enum { SCALES_FIRST = 0 };
  static inline F16 probability(F16 score, float factor, float most) {
    const float log2e = 1.44269504f;
    return small_power_of_two(fma(score, splat(factor * log2e), splat(-most * log2e)));
  }

  /* Of scratch memory, which nobody constructs. */
  inline void begin() { rows = 0; }
  inline void end() { t.release(); }

  /* dim: a multiple of 16 */
  inline void scores(const bf16* q, int count, const Groups<bf16>& keys, int dim, float* score) {
    enum { FROM = SW_MAX_HEAD_DIM * 2, TO = SW_ATTENTION_TILE * 4 };
    size_t stride[CHUNKS];
    const bf16* at[CHUNKS];
    for (int i = 0; i < CHUNKS; ++i) at[i] = keys.at[i], stride[i] = keys.stride[i] * 2;
    of(count);
    t.clear<0>(), t.clear<1>(), t.clear<2>(), t.clear<3>();
    for (; dim >= 32; dim -= 32, q += 32) {
      t.load<4>(q, FROM);
      t.load<6>(at[0], stride[0]), t.add_bf16<0, 4, 6>();
      t.load<6>(at[1], stride[1]), t.add_bf16<1, 4, 6>();
      t.load<6>(at[2], stride[2]), t.add_bf16<2, 4, 6>();
      t.load<6>(at[3], stride[3]), t.add_bf16<3, 4, 6>();
      for (int i = 0; i < CHUNKS; ++i) at[i] += stride[i] * 8;
    }
    if (dim) {
      t.load<5>(q, FROM);
      t.load<7>(at[0], stride[0]), t.add_bf16<0, 5, 7>();
      t.load<7>(at[1], stride[1]), t.add_bf16<1, 5, 7>();
      t.load<7>(at[2], stride[2]), t.add_bf16<2, 5, 7>();
      t.load<7>(at[3], stride[3]), t.add_bf16<3, 5, 7>();
    }
    t.store<0>(score, TO), t.store<1>(score + 16, TO), t.store<2>(score + 32, TO), t.store<3>(score + 48, TO);
  }

  inline void values(const bf16* probability, int count, const Groups<bf16>* values, int chunks, int groups, int positions,
                     float* part) {
    enum { FROM = SW_ATTENTION_TILE * 2, TO = SW_PART * 4 };
    of(count);
    t.load<0>(part, TO);
    if (groups > 1) t.load<1>(part + 16, TO);
    if (groups > 2) t.load<2>(part + 32, TO);
    if (groups > 3) t.load<3>(part + 48, TO);
    for (; chunks > 0; --chunks, ++values, probability += CHUNK) {
      t.load<5>(probability, FROM);
      add<0>(*values, positions);
      if (groups > 1) add<1>(*values, positions);
      if (groups > 2) add<2>(*values, positions);
      if (groups > 3) add<3>(*values, positions);
    }
    t.store<0>(part, TO);
    if (groups > 1) t.store<1>(part + 16, TO);
    if (groups > 2) t.store<2>(part + 32, TO);
    if (groups > 3) t.store<3>(part + 48, TO);
  }

 private:
  Tiles8 t;
  int rows; /* that tiles have; 0 before the first product */

  /* Tiles 0 to 3 sum; 4 and 5 have 32 and 16 columns of the left side, 6 and 7 as many lines of the right one. */
  inline void of(int count) {
    if (rows == count) return;
    rows = count;
    TileShapes shapes;
    for (int i = 0; i < 4; ++i) shapes.set(i, count, 64);
    shapes.set(4, count, 64), shapes.set(5, count, 32), shapes.set(6, 16, 64), shapes.set(7, 8, 64);
    t.shape(shapes);
  }

  /* What lies behind the last position may be no number, which a probability of 0 does not hide. */
  template <int G>
  inline void add(const Groups<bf16>& values, int positions) {
    if (positions == CHUNK) {
      t.load<7>(values.at[G], values.stride[G] * 2);
    } else {
      alignas(64) bf16 own[CHUNK / 2][32] = {};
      for (int i = 0; i < (positions + 1) / 2; ++i) memcpy(own[i], values.at[G] + i * values.stride[G], 64);
      t.load<7>(own, 64);
    }
    t.add_bf16<G, 5, 7>();
  }
};

static void attend_tiled(const Attention& a, const Sequence& sequence, int kv_head, int first, int count, int split_begin,
                         int split_end, float* parts, size_t parts_stride, void* scratch) {
  if (a.pages.dtype != SW_BF16 || a.pages.head_dim % 16)
    return sw_kernels_avx512vnni().attend(a, sequence, kv_head, first, count, split_begin, split_end, parts, parts_stride,
                                          scratch);
  auto& s = *(AttentionScratch<ByTiles>*)scratch;
  s.by.begin();
  attend_by(a, sequence, kv_head, first, count, split_begin, split_end, parts, parts_stride, s);
  s.by.end();
}
