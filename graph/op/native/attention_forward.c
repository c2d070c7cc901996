// A workgroup is a block of queries of one head.
static void forward(u32 group, const operand *restrict q, const operand *restrict k, const operand *restrict v, result *restrict o, f32 *restrict lse,
                    const u32 *restrict extra) {
  f32 qs[QUERIES * ROW] __attribute__((aligned(64))), os[QUERIES * ROW] __attribute__((aligned(64))), s[QUERIES * KEYS] __attribute__((aligned(64)));
  f32 ks[KEYS * ROW] __attribute__((aligned(64))), kt[DIM * KEYS] __attribute__((aligned(64)));
  f32 top[QUERIES], sum[QUERIES];
  const int h = group % HEADS, block = group / HEADS % BLOCKS, b = group / HEADS / BLOCKS;
  const int i0 = block * QUERIES, rows = LEAST(QUERIES, TQ - i0);
  const u32 position = POSITION ? extra[0] : 0;
  const u32 *segments = extra + (i64)b * TK;
  const int past = (u64)i0 + rows + position < TK ? (int)(i0 + rows + position) : TK;
  int start = 0, unused;
  if (SEGMENTS) edges(segments, i0, rows, past, &start, &unused);
  rows_operand(qs, q + ((i64)(b * TQ + i0) * HEADS + h) * DIM, HEADS * DIM, rows, QUERIES);
  memset(os, 0, sizeof os);
  for (int i = 0; i < QUERIES; i++) { top[i] = LOWEST; sum[i] = 0; }
  for (int j0 = start / KEYS * KEYS; j0 < past; j0 += KEYS) {
    const int cols = LEAST(KEYS, past - j0);
    const i64 at = ((i64)(b * TK + j0) * KV + h / GROUP) * DIM;
    rows_operand(ks, k + at, KV * DIM, cols, KEYS);
    turned(kt, ks);
    memset(s, 0, sizeof s);
    multiply(s, KEYS, qs, ROW, 1, kt, KEYS, QUERIES, KEYS, DIM);
    for (int i = 0; i < rows; i++) {
      f32 *x = s + i * KEYS, larger = top[i], total = 0;
      const i64 sees = (i64)i0 + i + position + 1 - j0;
      const int seen = sees < 0 ? 0 : sees < cols ? (int)sees : cols;
#pragma omp simd reduction(max : larger)
      for (int j = 0; j < KEYS; j++) {
        bool is = j < seen;
        if (SEGMENTS) is = is && segments[j0 + (is ? j : 0)] == segments[i0 + i];
        x[j] = is ? x[j] * SCALE : LOWEST;
        larger = max_f32(larger, x[j]);
      }
#pragma omp simd reduction(+ : total)
      for (int j = 0; j < KEYS; j++) {
        f32 p = x[j] == LOWEST ? 0.f : exp_f32(x[j] - larger);
        x[j] = p;
        total += p;
      }
      const f32 keep = exp_f32(top[i] - larger);
      sum[i] = sum[i] * keep + total;
      top[i] = larger;
      for (int x = 0; x < ROW; x++) os[i * ROW + x] *= keep;
    }
    rows_operand(ks, v + at, KV * DIM, cols, KEYS);
    multiply(os, ROW, s, KEYS, 1, ks, ROW, QUERIES, ROW, KEYS);
  }
  for (int i = 0; i < rows; i++) {
    result *to = o + ((i64)(b * TQ + i0 + i) * HEADS + h) * DIM;
    for (int x = 0; x < DIM; x++) to[x] = narrow_result(os[i * ROW + x] / sum[i]);
    lse[((i64)b * HEADS + h) * TQ + i0 + i] = top[i] + log_f32(sum[i]);
  }
}
