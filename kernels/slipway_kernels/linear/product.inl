/* The product of each form of W. */

static void linear(const Product& p, int row_begin, int row_end, int block_begin, int block_end) {
  /* Rows in parts that stay in the second-level cache while the blocks pass by: without, the rate falls by a
   * quarter from M = 128 to M = 512 (K = 2048, Zen 4). A part of codes is twice as large, so that more rows share what is
   * unfolded: 2 to 5 % faster (Zen 5). */
  int codes = sw_is_integers(p.w.dtype);
  size_t row_bytes = codes ? p.x_stride : (size_t)p.w.k * (p.w.dtype == SW_FP32 ? 4 : 2);
  int part = (int)((codes ? 2 : 1) * PART_BYTES / row_bytes) / ROWS * ROWS;
  part = part < 4 * ROWS ? 4 * ROWS : part;
  part = (even_tiles(row_end - row_begin, part) + ROWS - 1) / ROWS * ROWS;
  for (int row = row_begin; row < row_end; row += part) {
    int end = row_end - row < part ? row_end : row + part;
    if (codes)
      linear_codes(p, row, end, block_begin, block_end);
    else if (p.w.dtype == SW_BF16)
      linear_typed<bf16>(p, row, end, block_begin, block_end);
    else if (p.w.dtype == SW_E4M3)
      linear_narrow<NarrowVectors<bf16>>(p, row, end, block_begin, block_end);
    else
      linear_typed<float>(p, row, end, block_begin, block_end);
  }
}
