/* Sixteen rows of sixteen words to a packed block, whose words of 32 rows stand beside each other. A word is what
 * one step of K takes of a row: two numbers in bf16, one in fp32.
 *
 * Included after vector.h; the same rules. */

#if defined(__AVX2__)

/* Bytes ahead of where sixteen rows are read. Lines of rows that are a power of two apart share few sets of a cache:
 * what is fetched much sooner has gone when it is wanted. */
enum { ROW_PREFETCH = 256 };

/* Eight words of eight rows become eight rows of eight words. */
inline void transpose_eight(const char* const* rows, size_t at, __m256i* out) {
  __m256i row[8], pair[8], four[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_si256((const __m256i*)(rows[i] + at));
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm256_unpacklo_epi64(pair[i + j], pair[i + j + 2]);
      four[i + 2 * j + 1] = _mm256_unpackhi_epi64(pair[i + j], pair[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
  }
}

/* Bytes [at, at + 64) of sixteen rows to `out`. Whole lines are written past the caches: otherwise each would be
 * read before, and nobody reads it soon. */
inline void transpose_sixteen(const char* const* rows, size_t at, char* out) {
  for (int i = 0; i < 16; ++i) __builtin_prefetch(rows[i] + at + ROW_PREFETCH);
  for (int half = 0; half < 2; ++half) {
    __m256i left[8], right[8];
    transpose_eight(rows, at + half * 32, left);
    transpose_eight(rows + 8, at + half * 32, right);
    for (int i = 0; i < 8; ++i) {
      char* line = out + (half * 8 + i) * 128;
      _mm256_stream_si256((__m256i*)line, left[i]);
      _mm256_stream_si256((__m256i*)(line + 32), right[i]);
    }
  }
}

/* Has other threads see what was written. */
inline void transposed() { _mm_sfence(); }

#else

inline void transpose_sixteen(const char* const* rows, size_t at, char* out) {
  for (int word = 0; word < 16; ++word)
    for (int i = 0; i < 16; ++i) memcpy(out + word * 128 + i * 4, rows[i] + at + word * 4, 4);
}
inline void transposed() {}

#endif
