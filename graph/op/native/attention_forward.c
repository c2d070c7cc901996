static __attribute__((noinline)) void scores(f32 *s, const f32 *keys, const f32 *qt, int rows, int cols) {
  multiply(s, QUERIES, keys, KEY_ROW, 1, qt, QUERIES, rows, cols, DIM, true);
}
MULTIPLY(weigh, ROW, 1, QUERIES, KEY_ROW, ROW, false)

// keys_seen returns how many keys of a block PART queries compute with, a multiple of 8. Those from split on see all.
static inline int keys_seen(int i, int split, int diagonal) { return i < split ? (i + PART - diagonal + 7) / 8 * 8 : KEYS; }

// A workgroup is a block of queries of one head. Scores are kept with queries side by side, so that the softmax of many
// queries is computed at once.
static void forward(u32 group, const operand *restrict q, const operand *restrict k, const operand *restrict v, result *restrict o,
                    f32 *restrict lse, const u32 *restrict extra, const u32 *restrict slots) {
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
  for (int i = 0; i < DIM * QUERIES; i++) qt[i] *= SCALE;
  memset(os, 0, sizeof os);
  for (int i = 0; i < QUERIES; i++) { top[i] = LOWEST; sum[i] = 0; }
  for (int j0 = POSITION ? start : start / KEYS * KEYS; j0 < past; j0 += KEYS) {
    const int cols = LEAST(KEYS, past - j0);
    const int diagonal = (int)MOST((i64)j0 - position - i0, WINDOW ? -(1 << 30) : -KEYS); // query i sees the block's keys up to i − diagonal
    const int from = MOST(diagonal, 0) / PART * PART; // queries before from see none of these keys
    const i64 newest = (i64)j0 + cols - 1 + WINDOW - i0 - position; // queries from it on see none of these keys, if there is a window
    const int end = WINDOW ? (int)LEAST((newest + PART - 1) / PART * PART, QUERIES) : QUERIES, low = LEAST(height, end);
    const i64 at = ((i64)(cache * TK + j0) * KV + h / GROUP) * DIM;
    // Queries before split do not see all keys. Each PART of them computes with the keys that its last query sees.
    const int split = MOST(from, LEAST(end, (diagonal + KEYS - 1) / PART * PART));
    const f32 *keys = placed(ks, k + at, KV * DIM, cols, KEYS);
    for (int i = from; i < split; i += PART) scores(s + i, keys, qt + i, keys_seen(i, split, diagonal), PART);
    scores(s + split, keys, qt + split, KEYS, end - split);
    for (int i = from; i < end; i += PART) {
      const int seen = keys_seen(i, split, diagonal);
      f32 larger[PART], total[PART], keep[PART];
      for (int x = 0; x < PART; x++) { larger[x] = top[i + x]; total[x] = 0; }
      if (!WINDOW && !SEGMENTS && i >= diagonal + KEYS - 1 && cols == KEYS) { // all queries see all keys
        for (f32 *sj = s + i; sj < s + KEYS * QUERIES; sj += QUERIES) {
#pragma omp simd
          for (int x = 0; x < PART; x++) larger[x] = max_f32(larger[x], sj[x]);
        }
        for (f32 *sj = s + i; sj < s + KEYS * QUERIES; sj += QUERIES) {
#pragma omp simd
          for (int x = 0; x < PART; x++) {
            f32 y = exp_f32(sj[x] - larger[x]);
            sj[x] = y;
            total[x] += y;
          }
        }
      } else {
        for (int j = 0; j < seen; j++) {
          const int first = j < cols ? diagonal + j : QUERIES; // the first query that sees the key
          f32 *sj = s + j * QUERIES + i;
#pragma omp simd
          for (int x = 0; x < PART; x++) {
            const f32 score = sj[x]; // loaded for every lane: a load under the mask would become a gather
            bool is = i + x >= first;
            if (WINDOW) is = is && i + x < first + WINDOW;
            if (SEGMENTS) is = is && segments[j0 + LEAST(j, cols - 1)] == segments[LEAST(i0 + i + x, TK - 1)];
            f32 y = is ? score : LOWEST;
            sj[x] = y;
            larger[x] = max_f32(larger[x], y);
          }
        }
        for (f32 *sj = s + i; sj < s + seen * QUERIES; sj += QUERIES) {
#pragma omp simd
          for (int x = 0; x < PART; x++) {
            f32 y = sj[x];
            y = y == LOWEST ? 0.f : exp_f32(y - larger[x]);
            sj[x] = y;
            total[x] += y;
          }
        }
      }
      u32 rescale = 0;
#pragma omp simd reduction(| : rescale)
      for (int x = 0; x < PART; x++) {
        keep[x] = exp_f32(top[i + x] - larger[x]);
        rescale |= keep[x] != 1.f ? 1u : 0u;
        sum[i + x] = sum[i + x] * keep[x] + total[x];
        top[i + x] = larger[x];
      }
      if (!rescale) continue;
      for (int x = 0; x < PART; x++)
        for (int d = 0; d < ROW; d++) os[(i + x) * ROW + d] *= keep[x];
    }
    const f32 *values = placed(ks, v + at, KV * DIM, cols, KEYS);
    for (int i = from; i < LEAST(split, low); i += PART) weigh(os + i * ROW, s + i, values, LEAST(PART, low - i), keys_seen(i, split, diagonal));
    weigh(os + split * ROW, s + split, values, low - split, KEYS);
  }
#pragma omp simd
  for (int i = 0; i < rows; i++) {
    lse[((i64)b * HEADS + h) * TQ + i0 + i] = top[i] + log_f32(sum[i]);
    sum[i] = 1.f / sum[i];
  }
  for (int i = 0; i < rows; i++) {
    result *to = o + ((i64)(b * TQ + i0 + i) * HEADS + h) * DIM;
    for (int x = 0; x < DIM; x++) to[x] = narrow_result(os[i * ROW + x] * sum[i]);
  }
}
