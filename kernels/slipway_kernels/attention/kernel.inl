/* softmax(scale · q · Kᵀ) · V over paged keys, with an online softmax; causal, or both ways over a request's rows.
 *
 * A row's positions are taken in tiles of SW_ATTENTION_TILE and splits of SW_SPLIT that start at fixed
 * absolute positions, so its result does not depend on the chunk, the block size, the rows beside it or the
 * number of threads. A masked position has probability 0 and adds exactly nothing, whatever its key and value
 * are. Keys and values of eight bits are widened chunk by chunk, and their scales go into the scores and the
 * sums; those of integers, which each position has, into the scores and the probabilities. */
enum { CHUNK = 16, CHUNKS = SW_ATTENTION_TILE / CHUNK };

/* How queries and probabilities are multiplied: by vectors here, in tiles in tiled.inl. */
template <class T>
struct ByVectors {
  typedef T Element;
  typedef typename Operand<T>::Left Left;
  static inline void keep(Left* to, F16 v) { Operand<T>::keep(to, v); }
  /* Whether scores are scaled as they come; else they keep a factor, which `probability` is told. */
  enum { SCALES_FIRST = 1 };
  /* exp(factor · score - most) */
  static inline F16 probability(F16 score, float, float most) { return exponential(score - splat(most)); }
  /* score[count][SW_ATTENTION_TILE] = q · Kᵀ */
  inline void scores(const Left* q, int count, const Groups<T>& keys, int dim, float* score) {
    multiply(q, SW_MAX_HEAD_DIM, count, &keys, 1, CHUNKS, dim / Operand<T>::STEP, score, SW_ATTENTION_TILE, 0);
  }
  /* part[count][groups · 16] += probability · V, over so many chunks and the first `positions` of each. */
  inline void values(const Left* probability, int count, const Groups<T>* values, int chunks, int groups, int positions,
                     float* part) {
    enum { STEP = Operand<T>::STEP };
    multiply(probability, SW_ATTENTION_TILE, count, values, chunks, groups, (positions + STEP - 1) / STEP, part, SW_PART,
             1);
  }
};

template <class By>
struct AttentionScratch {
  typedef typename By::Element T;
  By by;
  alignas(64) typename By::Left q[SW_QUERIES * SW_MAX_HEAD_DIM];
  alignas(64) typename By::Left probability[SW_QUERIES * SW_ATTENTION_TILE];
  alignas(64) float score[SW_QUERIES * SW_ATTENTION_TILE];
  float part[SW_QUERIES * SW_PART], total[SW_QUERIES * SW_PART];
  T key[CHUNKS * SW_MAX_HEAD_DIM * CHUNK], value[CHUNKS * SW_MAX_HEAD_DIM * CHUNK];
  uint8_t narrow_key[SW_MAX_HEAD_DIM * CHUNK], narrow_value[SW_MAX_HEAD_DIM * CHUNK];
  float key_scale[SW_ATTENTION_TILE], value_scale[SW_ATTENTION_TILE]; /* of integers */
  int low[SW_QUERIES], high[SW_QUERIES]; /* the positions that a query sees: [low, high) */
  int lowest, highest;
};

/* Sixteen positions of one key head: K from one vector of positions to the next, V from one step to the next. */
template <class T>
struct Chunk {
  const T *key, *value;
  size_t key_stride;
};

alignas(64) static const char zeros[SW_MAX_HEAD_DIM * CHUNK * 4] = {};

/* Blocks that are no multiple of sixteen positions are gathered into scratch of that form. */
template <class T, class Stored>
static void gather(const LayerPages& pages, const int32_t* table, int kv_head, int begin, int low, int high,
                   Stored* key, Stored* value) {
  enum { STEP = Operand<T>::STEP };
  int dim = pages.head_dim, lanes = padded(dim);
  memset(key, 0, (size_t)dim * CHUNK * sizeof(Stored));
  memset(value, 0, (size_t)lanes * CHUNK * sizeof(Stored));
  for (int i = 0; i < CHUNK; ++i) {
    int position = begin + i;
    if (position < low || position >= high) continue;
    int page = table[position / pages.block], at = position % pages.block;
    if (page < 0) continue;
    const Stored* from = key_at<T, Stored>(pages, page, kv_head) + at * STEP;
    for (int d = 0; d < dim; d += STEP)
      memcpy(key + d * CHUNK + i * STEP, from + (size_t)d * pages.block, STEP * sizeof(Stored));
    from = value_at<T, Stored>(pages, page, kv_head) + (size_t)(at / STEP) * lanes * STEP + at % STEP;
    Stored* to = value + (i / STEP) * lanes * STEP + i % STEP;
    for (int d = 0; d < dim; ++d) to[d * STEP] = from[d * STEP];
  }
}

/* Scales of a chunk's positions. */
template <class By>
static void gather_scales(const LayerPages& pages, const int32_t* table, int kv_head, int begin,
                          AttentionScratch<By>& s, int index) {
  float *key = s.key_scale + index * CHUNK, *value = s.value_scale + index * CHUNK;
  for (int i = 0, count; i < CHUNK; i += count) { /* of one page */
    int position = begin + i, at = position % pages.block;
    count = CHUNK - i < pages.block - at ? CHUNK - i : pages.block - at;
    int page = position < s.highest && position + count > s.lowest ? table[position / pages.block] : -1;
    if (page < 0) {
      memset(key + i, 0, count * sizeof(float)), memset(value + i, 0, count * sizeof(float));
    } else {
      memcpy(key + i, key_scales(pages, page, kv_head) + at, count * sizeof(float));
      memcpy(value + i, value_scales(pages, page, kv_head) + at, count * sizeof(float));
    }
  }
}

/* A chunk of eight bits, in T. */
template <class By, class T>
static void widen_chunk(const LayerPages& pages, const int32_t* table, int kv_head, int begin,
                        AttentionScratch<By>& s, T* key, T* value) {
  enum { STEP = Operand<T>::STEP };
  int dim = pages.head_dim, lanes = padded(dim);
  if (pages.block % CHUNK) {
    gather<T>(pages, table, kv_head, begin, s.lowest, s.highest, s.narrow_key, s.narrow_value);
    widen_all(s.narrow_key, key, dim * CHUNK, pages.stored);
    widen_all(s.narrow_value, value, lanes * CHUNK, pages.stored);
    return;
  }
  int page = table[begin / pages.block], at = begin % pages.block;
  const uint8_t* from = key_at<T, uint8_t>(pages, page, kv_head) + at * STEP;
  for (int d = 0; d < dim; d += STEP)
    widen_all(from + (size_t)d * pages.block, key + d * CHUNK, STEP * CHUNK, pages.stored);
  widen_all(value_at<T, uint8_t>(pages, page, kv_head) + (size_t)at * lanes, value, lanes * CHUNK, pages.stored);
}

template <class By, class T = typename By::Element>
static Chunk<T> chunk_at(const LayerPages& pages, const int32_t* table, int kv_head, int begin,
                         AttentionScratch<By>& s, int index) {
  enum { STEP = Operand<T>::STEP };
  const T* nothing = (const T*)zeros;
  if (begin >= s.highest || begin + CHUNK <= s.lowest) return {nothing, nothing, CHUNK * STEP};
  bool narrow = pages.stored != pages.dtype;
  if (pages.stored == SW_INT8) gather_scales(pages, table, kv_head, begin, s, index);
  if (pages.block % CHUNK == 0) {
    int page = table[begin / pages.block], at = begin % pages.block;
    if (page < 0) return {nothing, nothing, CHUNK * STEP};
    if (!narrow) return {key_at<T>(pages, page, kv_head) + at * STEP,
            value_at<T>(pages, page, kv_head) + (size_t)at * padded(pages.head_dim), (size_t)pages.block * STEP};
  }
  T* key = s.key + index * SW_MAX_HEAD_DIM * CHUNK;
  T* value = s.value + index * SW_MAX_HEAD_DIM * CHUNK;
  if (narrow)
    widen_chunk(pages, table, kv_head, begin, s, key, value);
  else
    gather<T>(pages, table, kv_head, begin, s.lowest, s.highest, key, value);
  return {key, value, CHUNK * STEP};
}

/* `hidden` where a position, from `at` on, is not in [low, high) of the tile. */
static inline F16 seen(F16 x, int at, int low, int high, float hidden) {
  if (low <= at && high >= at + CHUNK) return x;
  F16 lane = load(lane_number);
  x = where_less(lane, splat((float)(high - at)), x, splat(hidden));
  return where_less(lane, splat((float)(low - at)), splat(hidden), x);
}

/* A cap is of scaled scores. */
template <class By>
static inline bool scales_first(const Attention& a) {
  return By::SCALES_FIRST || a.softcap > 0.0f;
}

/* Scaled where that comes first, capped and masked. */
template <class By>
static inline F16 final_score(const Attention& a, const AttentionScratch<By>& s, const float* score, int at, int low,
                              int high) {
  F16 x = load(score + at);
  if (scales_first<By>(a)) x = x * splat(a.scale * a.pages.key_scale);
  if (a.pages.stored == SW_INT8) x = x * load(s.key_scale + at);
  if (a.softcap > 0.0f) x = splat(a.softcap) * hyperbolic_tangent(x / splat(a.softcap));
  return seen(x, at, low, high, -INFINITY);
}

/* Scores of a tile become probabilities; partial sums are rescaled to the new maxima. */
template <class By>
static void soften(const Attention& a, AttentionScratch<By>& s, int count, int begin) {
  static_assert(SW_QUERIES <= 16, "a vector has one lane for each query");
  alignas(64) float before[16] = {}, after[16], keep[16], sum[16];
  float factor = scales_first<By>(a) ? 1.0f : a.scale * a.pages.key_scale;
  F16 most[16], sums[16]; /* of a query's positions, in lanes */
  auto sees = [&](int query) { return s.low[query] < begin + SW_ATTENTION_TILE && s.high[query] > begin; };
  for (int query = 0; query < 16; ++query) most[query] = splat(-INFINITY), sums[query] = zero();
  for (int query = 0; query < count; ++query) {
    before[query] = s.part[query * SW_PART];
    if (!sees(query)) continue;
    float* score = s.score + query * SW_ATTENTION_TILE;
    F16 value[CHUNKS];
#pragma GCC unroll 4
    for (int i = 0; i < CHUNKS; ++i) {
      value[i] = final_score(a, s, score, i * CHUNK, s.low[query] - begin, s.high[query] - begin);
      store(score + i * CHUNK, value[i]);
    }
    most[query] = larger(larger(value[0], value[1]), larger(value[2], value[3]));
  }
  F16 maxima = largest_of_rows(most, count);
  if (!By::SCALES_FIRST) maxima = maxima * splat(factor);
  maxima = where_less(load(before), maxima, maxima, load(before));
  store(after, maxima);
  store(keep, exponential(load(before) - maxima));
  for (int query = 0; query < count; ++query) {
    const float* score = s.score + query * SW_ATTENTION_TILE;
    auto* probability = s.probability + query * SW_ATTENTION_TILE;
    if (!sees(query)) {
      for (int i = 0; i < CHUNKS; ++i) By::keep(probability + i * CHUNK, zero());
      continue;
    }
    int low = s.low[query] - begin, high = s.high[query] - begin;
    F16 value[CHUNKS];
#pragma GCC unroll 4
    for (int i = 0; i < CHUNKS; ++i) {
      value[i] = By::probability(load(score + i * CHUNK), factor, after[query]);
      /* What is hidden adds nothing, whatever its scale is. */
      if (a.pages.stored == SW_INT8)
        By::keep(probability + i * CHUNK, seen(value[i] * load(s.value_scale + i * CHUNK), i * CHUNK, low, high, 0.0f));
      else
        By::keep(probability + i * CHUNK, value[i]);
    }
    sums[query] = (value[0] + value[1]) + (value[2] + value[3]);
  }
  store(sum, sums_of_rows(sums, count));
  for (int query = 0; query < count; ++query) {
    if (!sees(query)) continue;
    float* part = s.part + query * SW_PART;
    float kept = before[query] == after[query] ? 1.0f : keep[query];
    part[0] = after[query];
    part[1] = part[1] * kept + sum[query];
    if (kept != 1.0f)
      for (int i = 0; i < padded(a.pages.head_dim); i += 16)
        store(part + 16 + i, load(part + 16 + i) * splat(kept));
  }
}

/* part += probability · V of `count` queries, over so many chunks and the first `positions` of each. */
template <class By, class T>
static void add_values(AttentionScratch<By>& s, int query, int count, const Chunk<T>* chunk, int first, int chunks,
                       int positions, int lanes) {
  enum { STEP = Operand<T>::STEP };
  for (int lane = 0; lane < lanes; lane += 64) {
    int groups = (lanes - lane < 64 ? lanes - lane : 64) / 16;
    Groups<T> values[CHUNKS];
    for (int i = 0; i < chunks; ++i)
      for (int g = 0; g < groups; ++g) {
        values[i].at[g] = chunk[first + i].value + (lane + g * 16) * STEP;
        values[i].stride[g] = (size_t)lanes * STEP;
      }
    s.by.values(s.probability + query * SW_ATTENTION_TILE + first * CHUNK, count, values, chunks, groups, positions,
                s.part + query * SW_PART + 16 + lane);
  }
}

static inline int is_finite(float x) { return (bits_of(x) & 0x7f800000) != 0x7f800000; }
static inline int is_finite(bf16 x) { return (x & 0x7f80) != 0x7f80; }

/* Whether the values of positions [first, end) of a chunk are numbers, partners of a pair included. */
template <class T>
static bool all_finite(const T* value, int first, int end, int lanes) {
  enum { STEP = Operand<T>::STEP };
  int finite = 1;
  for (int i = first / STEP * lanes * STEP; i < (end + STEP - 1) / STEP * lanes * STEP; ++i)
    finite &= is_finite(value[i]);
  return finite;
}

/* Each query over its own positions alone: a probability of 0 does not hide an infinity or a NaN. Such values are
 * those of a draft that should not have been guessed, and they must not reach the rows before it. */
template <class By, class T>
static void add_values_apart(AttentionScratch<By>& s, int count, const Chunk<T>* chunk, int index, int from, int lanes) {
  enum { STEP = Operand<T>::STEP };
  alignas(64) T own[SW_MAX_HEAD_DIM * CHUNK];
  Chunk<T> at[CHUNKS];
  at[index].value = own;
  for (int query = 0; query < count; ++query) {
    int positions = s.high[query] - from < CHUNK ? s.high[query] - from : CHUNK;
    if (positions <= 0) continue;
    memcpy(own, chunk[index].value, (size_t)lanes * CHUNK * sizeof(T));
    if (positions % STEP)
      for (int d = 0; d < lanes; ++d) own[(positions / STEP * lanes + d) * STEP + 1] = 0;
    add_values(s, query, 1, at, index, 1, positions, lanes);
  }
}

template <class By>
static void attend_tile(const Attention& a, const int32_t* table, int kv_head, int count, int begin,
                        AttentionScratch<By>& s) {
  typedef typename By::Element T;
  int lanes = padded(a.pages.head_dim);
  Chunk<T> chunk[CHUNKS];
  Groups<T> keys;
  for (int i = 0; i < CHUNKS; ++i) {
    chunk[i] = chunk_at(a.pages, table, kv_head, begin + i * CHUNK, s, i);
    keys.at[i] = chunk[i].key;
    keys.stride[i] = chunk[i].key_stride;
  }
  s.by.scores(s.q, count, keys, a.pages.head_dim, s.score);
  soften(a, s, count, begin);
  /* A chunk without positions that come after the first query. Sums of V stay in registers over a run of such chunks. */
  auto is_whole = [&](int i) {
    return i < CHUNKS && begin + (i + 1) * CHUNK <= s.high[0] && chunk[i].value != (const T*)zeros;
  };
  for (int i = 0, chunks; i < CHUNKS; i += chunks) {
    for (chunks = 0; is_whole(i + chunks);) ++chunks;
    if (chunks) {
      add_values(s, 0, count, chunk, i, chunks, CHUNK, lanes);
      continue;
    }
    chunks = 1;
    int from = begin + i * CHUNK;
    if (from >= s.highest || chunk[i].value == (const T*)zeros) continue;
    int positions = s.highest - from < CHUNK ? s.highest - from : CHUNK;
    int hidden = s.high[0] > from ? s.high[0] - from : 0; /* the first position that some query does not see */
    if (hidden < positions && !all_finite(chunk[i].value, hidden, positions, lanes))
      add_values_apart(s, count, chunk, i, from, lanes);
    else
      add_values(s, 0, count, chunk, i, 1, positions, lanes);
  }
}

/* total and part: [0] maximum, [1] sum of probabilities, [16...] sums of V. A total is NaN until something is merged:
 * where every score is -inf or NaN, what an earlier row left there must not come out. */
static void clear(float* total) {
  total[0] = -INFINITY;
  total[1] = NAN;
}

static void merge(float* total, const float* part, int lanes) {
  if (part[0] == -INFINITY) return;
  if (total[0] == -INFINITY) {
    memcpy(total, part, (16 + lanes) * sizeof(float));
    return;
  }
  float maximum = total[0] > part[0] ? total[0] : part[0];
  float a = exponential(total[0] - maximum), b = exponential(part[0] - maximum);
  total[0] = maximum;
  total[1] = total[1] * a + part[1] * b;
  for (int i = 16; i < 16 + lanes; i += 16)
    store(total + i, load(total + i) * splat(a) + load(part + i) * splat(b));
}

template <class T>
static void write_out(const Attention& a, const Sequence& sequence, int kv_head, int query, const float* total) {
  int group = a.heads / a.pages.kv_heads, dim = a.pages.head_dim;
  int row = sequence.first_row + query / group, head = kv_head * group + query % group;
  T* out = (T*)a.out + row * a.out_stride + head * dim;
  F16 sum = splat(total[1]);
  F16 scale = splat(a.pages.value_scale);
  for (int i = 0; i < dim; i += 16) put(out + i, load(total + 16 + i) / sum * scale, dim - i);
}

template <class By>
static void begin_queries(const Attention& a, const Sequence& sequence, int kv_head, int first, int count,
                          AttentionScratch<By>& s) {
  typedef typename By::Element T;
  int group = a.heads / a.pages.kv_heads, dim = a.pages.head_dim;
  for (int i = 0; i < count; ++i) {
    int row = (first + i) / group, head = kv_head * group + (first + i) % group;
    const T* from = (const T*)a.q + (sequence.first_row + row) * a.q_stride + head * dim;
    if constexpr (sizeof(s.q[0]) == sizeof(T))
      memcpy(s.q + i * SW_MAX_HEAD_DIM, from, dim * sizeof(T));
    else
      widen_rows(from, 0, 1, dim, s.q + i * SW_MAX_HEAD_DIM, 0);
    int next = sequence.first_position + row + 1, end = sequence.first_position + sequence.rows;
    int seen = a.first < next ? a.first : next - 1;
    s.low[i] = a.window > 0 && next - a.window > seen ? next - a.window : seen;
    s.high[i] = !a.both_ways ? next : a.window > 0 && next - 1 + a.window < end ? next - 1 + a.window : end;
  }
  s.lowest = s.low[0];
  s.highest = s.high[count - 1];
}

template <class By>
static void attend_by(const Attention& a, const Sequence& sequence, int kv_head, int first, int count, int split_begin,
                      int split_end, float* parts, size_t parts_stride, AttentionScratch<By>& s) {
  int lanes = padded(a.pages.head_dim);
  begin_queries(a, sequence, kv_head, first, count, s);
  for (int i = 0; i < count; ++i) clear(s.total + i * SW_PART);
  for (int split = split_begin; split < split_end; ++split) {
    memset(s.part, 0, count * SW_PART * sizeof(float));
    for (int i = 0; i < count; ++i) s.part[i * SW_PART] = -INFINITY;
    int begin = split * SW_SPLIT;
    int first_tile = s.lowest / SW_ATTENTION_TILE * SW_ATTENTION_TILE;
    for (int at = begin < first_tile ? first_tile : begin; at < begin + SW_SPLIT && at < s.highest;
         at += SW_ATTENTION_TILE)
      attend_tile(a, sequence.table, kv_head, count, at, s);
    for (int i = 0; i < count; ++i) {
      if (parts)
        memcpy(parts + (split * parts_stride + first + i) * SW_PART, s.part + i * SW_PART,
               SW_PART * sizeof(float));
      else
        merge(s.total + i * SW_PART, s.part + i * SW_PART, lanes);
    }
  }
  if (!parts)
    for (int i = 0; i < count; ++i) write_out<typename By::Element>(a, sequence, kv_head, first + i, s.total + i * SW_PART);
}

static void attend(const Attention& a, const Sequence& sequence, int kv_head, int first, int count,
                   int split_begin, int split_end, float* parts, size_t parts_stride, void* scratch) {
  if (a.pages.dtype == SW_BF16)
    attend_by(a, sequence, kv_head, first, count, split_begin, split_end, parts, parts_stride,
              *(AttentionScratch<ByVectors<bf16>>*)scratch);
  else
    attend_by(a, sequence, kv_head, first, count, split_begin, split_end, parts, parts_stride,
              *(AttentionScratch<ByVectors<float>>*)scratch);
}

static void merge_parts(const Attention& a, const Sequence& sequence, int kv_head, int first, int count,
                        int split_begin, int split_end, const float* parts, size_t parts_stride) {
  for (int query = first; query < first + count; ++query) {
    float total[SW_PART];
    clear(total);
    for (int split = split_begin; split < split_end; ++split)
      merge(total, parts + (split * parts_stride + query) * SW_PART, padded(a.pages.head_dim));
    if (a.pages.dtype == SW_BF16)
      write_out<bf16>(a, sequence, kv_head, query, total);
    else
      write_out<float>(a, sequence, kv_head, query, total);
  }
}
