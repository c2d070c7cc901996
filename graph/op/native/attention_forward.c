// A workgroup is a block of queries of one head. Scores are kept with queries side by side, so that the softmax of many
// queries is computed at once.
static void forward(u32 group, const operand *restrict q, const operand *restrict k, const operand *restrict v, result *restrict o, f32 *restrict lse,
                    const u32 *restrict extra, const u32 *restrict slots) {
  f32 qt[DIM * QUERIES] __attribute__((aligned(64))), os[QUERIES * ROW] __attribute__((aligned(64))), s[KEYS * QUERIES] __attribute__((aligned(64)));
  f32 ks[KEYS * ROW] __attribute__((aligned(64))), top[QUERIES] __attribute__((aligned(64))), sum[QUERIES] __attribute__((aligned(64)));
  const int h = group % HEADS, block = group / HEADS % BLOCKS, b = group / HEADS / BLOCKS;
  const int i0 = block * QUERIES, rows = LEAST(QUERIES, TQ - i0), height = (rows + 7) / 8 * 8;
  const u32 position = CACHES ? extra[b] : POSITION ? extra[0] : 0;
  const int cache = CACHES ? (int)LEAST(slots[b], CACHES - 1u) : b;
  const u32 *segments = extra + (i64)b * TK;
  const int past = (u64)i0 + rows + position < TK ? (int)(i0 + rows + position) : TK;
  int start = 0, unused;
  if (SEGMENTS) edges(segments, i0, rows, past, &start, &unused);
  const i64 oldest = (i64)i0 + position + 1 - WINDOW; // the first key in the window of query i0
  if (WINDOW && oldest > start) start = (int)LEAST(oldest, past);
  turned(qt, placed(os, q + ((i64)(b * TQ + i0) * HEADS + h) * DIM, HEADS * DIM, rows, QUERIES), QUERY_ROW, QUERIES);
  memset(os, 0, sizeof os);
  for (int i = 0; i < QUERIES; i++) { top[i] = LOWEST; sum[i] = 0; }
  for (int j0 = POSITION ? start : start / KEYS * KEYS; j0 < past; j0 += KEYS) {
    const int cols = LEAST(KEYS, past - j0);
    const int from = position ? 0 : MOST(j0 - i0, 0) / PART * PART; // queries before it see none of these keys
    const i64 newest = (i64)j0 + cols - 1 + WINDOW - i0 - position; // queries from it on see none of these keys, if there is a window
    const int end = WINDOW ? (int)LEAST((newest + PART - 1) / PART * PART, QUERIES) : QUERIES, low = LEAST(height, end);
    const i64 at = ((i64)(cache * TK + j0) * KV + h / GROUP) * DIM;
    const f32 *keys = placed(ks, k + at, KV * DIM, cols, KEYS);
    memset(s, 0, sizeof s);
    multiply(s + from, QUERIES, keys, KEY_ROW, 1, qt + from, QUERIES, KEYS, end - from, DIM);
    for (int i = from; i < end; i += PART) {
      f32 larger[PART], total[PART];
      for (int x = 0; x < PART; x++) { larger[x] = top[i + x]; total[x] = 0; }
      for (int j = 0; j < KEYS; j++) {
        // Query i sees the keys up to i + position.
        const i64 first = j < cols ? (i64)j0 + j - position - i0 : QUERIES;
#pragma omp simd
        for (int x = 0; x < PART; x++) {
          bool is = i + x >= first;
          if (WINDOW) is = is && i + x < first + WINDOW;
          if (SEGMENTS) is = is && segments[j0 + LEAST(j, cols - 1)] == segments[LEAST(i0 + i + x, TK - 1)];
          f32 y = is ? s[j * QUERIES + i + x] * SCALE : LOWEST;
          s[j * QUERIES + i + x] = y;
          larger[x] = max_f32(larger[x], y);
        }
      }
      for (int j = 0; j < KEYS; j++) {
#pragma omp simd
        for (int x = 0; x < PART; x++) {
          f32 y = s[j * QUERIES + i + x];
          y = y == LOWEST ? 0.f : exp_f32(y - larger[x]);
          s[j * QUERIES + i + x] = y;
          total[x] += y;
        }
      }
      f32 keep[PART];
#pragma omp simd
      for (int x = 0; x < PART; x++) {
        keep[x] = exp_f32(top[i + x] - larger[x]);
        sum[i + x] = sum[i + x] * keep[x] + total[x];
        top[i + x] = larger[x];
      }
      for (int x = 0; x < PART; x++)
        for (int d = 0; d < ROW; d++) os[(i + x) * ROW + d] *= keep[x];
    }
    const f32 *values = placed(ks, v + at, KV * DIM, cols, KEYS);
    if (from < low) multiply(os + from * ROW, ROW, s + from, 1, QUERIES, values, KEY_ROW, low - from, ROW, KEYS);
  }
  for (int i = 0; i < rows; i++) {
    result *to = o + ((i64)(b * TQ + i0 + i) * HEADS + h) * DIM;
    for (int x = 0; x < DIM; x++) to[x] = narrow_result(os[i * ROW + x] / sum[i]);
    lse[((i64)b * HEADS + h) * TQ + i0 + i] = top[i] + log_f32(sum[i]);
  }
}
