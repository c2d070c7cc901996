ROWS(rows_f32, f32)

// Σ go·o of each query is needed with every block of keys: it is computed once, where the stack holds all of them.
#define DELTAS_KEPT (GROUP * TQ <= 16384)

// SUM_ROW is the distance of rows in the sums of a block's gradients of queries.
#define SUM_ROW (IN_PLACE ? HEADS * DIM : ROW)

MULTIPLY(scores_half, KEYS, QUERY_ROW, 1, KEYS, HALF, true)   // of the first half of the keys
MULTIPLY(scores, KEYS, QUERY_ROW, 1, KEYS, KEYS, true)
MULTIPLY(over_queries, ROW, 1, KEYS, QUERY_ROW, ROW, false)
MULTIPLY(over_keys, SUM_ROW, KEYS, 1, KEY_ROW, ROW, !IN_PLACE)

static inline f32 delta(const f32 *go, const result *o, f32 glse) {
  f32 d = 0;
#pragma omp simd reduction(+ : d)
  for (int x = 0; x < DIM; x++) d += go[x] * widen_result(o[x]);
  return d - glse;
}

// A workgroup is a head of keys and its heads of queries, so that all sums have one order.
static void backward(u32 group, const operand *restrict q, const operand *restrict k, const operand *restrict v, const result *restrict o, const f32 *restrict lse,
                     const f32 *restrict go, const f32 *restrict glse, const u32 *restrict extra, f32 *restrict gq, f32 *restrict gk, f32 *restrict gv) {
  f32 qs[QUERIES * ROW] __attribute__((aligned(64))), gos[QUERIES * ROW] __attribute__((aligned(64))), gqs[QUERIES * ROW] __attribute__((aligned(64)));
  f32 ks[KEYS * ROW] __attribute__((aligned(64))), kt[DIM * KEYS] __attribute__((aligned(64))), vt[DIM * KEYS] __attribute__((aligned(64)));
  f32 gks[KEYS * ROW] __attribute__((aligned(64))), gvs[KEYS * ROW] __attribute__((aligned(64)));
  f32 p[QUERIES * KEYS] __attribute__((aligned(64))), gs[QUERIES * KEYS] __attribute__((aligned(64)));
  f32 deltas[DELTAS_KEPT ? GROUP * TQ : QUERIES];
  const int kv = group % KV, b = group / KV;
  const u32 *segments = extra + (i64)b * TK;
#define DELTA(h, i) delta(go + ((i64)(b * TQ + (i)) * HEADS + (h)) * DIM, o + ((i64)(b * TQ + (i)) * HEADS + (h)) * DIM, \
                          LSE_GRADIENT ? glse[((i64)b * HEADS + (h)) * TQ + (i)] : 0.f)
  for (int i = 0; i < TQ; i++) {
    memset(gq + ((i64)(b * TQ + i) * HEADS + kv * GROUP) * DIM, 0, sizeof(f32) * GROUP * DIM);
    for (int h = 0; h < GROUP && DELTAS_KEPT; h++) deltas[h * TQ + i] = DELTA(kv * GROUP + h, i);
  }
  for (int j0 = 0; j0 < TK; j0 += KEYS) {
    const int cols = LEAST(KEYS, TK - j0);
    const i64 at = ((i64)(b * TK + j0) * KV + kv) * DIM;
    turned(vt, placed(ks, v + at, KV * DIM, cols, KEYS), KEY_ROW, KEYS);
    const f32 *keys = placed(ks, k + at, KV * DIM, cols, KEYS);
    turned(kt, keys, KEY_ROW, KEYS);
    memset(gks, 0, sizeof gks);
    memset(gvs, 0, sizeof gvs);
    int past = TQ, unused;
    if (SEGMENTS) edges(segments, j0, cols, TK, &unused, &past);
    if (WINDOW) past = LEAST(past, j0 + cols - 1 + WINDOW); // the last key's window ends before it
    for (int h = kv * GROUP; h < (kv + 1) * GROUP; h++) {
      for (int i0 = j0 / QUERIES * QUERIES; i0 < past; i0 += QUERIES) {
        const int rows = LEAST(QUERIES, TQ - i0), top = MOST(j0 - i0, 0) / 8 * 8; // queries above top see none of these keys
        const int end = WINDOW ? LEAST((j0 + cols - 1 + WINDOW - i0 + 7) / 8 * 8, QUERIES) : QUERIES; // nor do those from end on
        const i64 from = ((i64)(b * TQ + i0) * HEADS + h) * DIM, row = ((i64)b * HEADS + h) * TQ + i0;
        const f32 *queries = placed(qs, q + from, HEADS * DIM, rows, QUERIES), *grads = go + from;
        if (!IN_PLACE) {
          rows_f32(gos, go + from, HEADS * DIM, rows, QUERIES);
          grads = gos;
        }
        const f32 *d = DELTAS_KEPT ? deltas + (h - kv * GROUP) * TQ + i0 : deltas;
        for (int i = 0; i < rows && !DELTAS_KEPT; i++) deltas[i] = DELTA(h, i0 + i);
        // Queries before split see keys of the first half only. So products with the second half begin at split.
        const int split = MOST(top, LEAST(end, j0 - i0 + HALF));
        scores_half(p + top * KEYS, queries + top * QUERY_ROW, kt, split - top, DIM);
        scores_half(gs + top * KEYS, grads + top * QUERY_ROW, vt, split - top, DIM);
        scores(p + split * KEYS, queries + split * QUERY_ROW, kt, end - split, DIM);
        scores(gs + split * KEYS, grads + split * QUERY_ROW, vt, end - split, DIM);
        for (int i = top; i < end; i++) {
          const int last = i < rows ? LEAST(i0 + i - j0, cols - 1) : -1, seen = i < split ? HALF : KEYS;
          const f32 l = i < rows ? lse[row + i] : 0, di = i < rows ? d[i] : 0;
          f32 *pi = p + i * KEYS, *gi = gs + i * KEYS;
          if (!WINDOW && !SEGMENTS && last == KEYS - 1) { // the query sees all keys
#pragma omp simd
            for (int j = 0; j < KEYS; j++) {
              f32 y = exp_f32(fma_f32(pi[j], SCALE, -l));
              pi[j] = y;
              gi[j] = y * (gi[j] - di) * SCALE;
            }
            continue;
          }
          for (int half = 0; half < seen; half += HALF) {
#pragma omp simd
            for (int j = half; j < half + HALF; j++) {
              const f32 score = pi[j], grad = gi[j]; // loaded for every lane: a load under the mask would become a gather
              bool is = j <= last;
              if (WINDOW) is = is && j > i0 + i - WINDOW - j0;
              if (SEGMENTS) is = is && segments[j0 + (is ? j : 0)] == segments[is ? i0 + i : 0];
              f32 y = is ? exp_f32(fma_f32(score, SCALE, -l)) : 0.f;
              pi[j] = y;
              gi[j] = is ? y * (grad - di) * SCALE : 0.f;
            }
          }
        }
        over_queries(gvs, p + top * KEYS, grads + top * QUERY_ROW, HALF, end - top);
        over_queries(gks, gs + top * KEYS, queries + top * QUERY_ROW, HALF, end - top);
        over_queries(gvs + HALF * ROW, p + split * KEYS + HALF, grads + split * QUERY_ROW, HALF, end - split);
        over_queries(gks + HALF * ROW, gs + split * KEYS + HALF, queries + split * QUERY_ROW, HALF, end - split);
        f32 *sums = IN_PLACE ? gq + from : gqs;
        over_keys(sums + top * SUM_ROW, gs + top * KEYS, keys, split - top, HALF);
        over_keys(sums + split * SUM_ROW, gs + split * KEYS, keys, end - split, KEYS);
        for (int i = top; i < LEAST(rows, end) && !IN_PLACE; i++)
          for (int x = 0; x < DIM; x++) gq[from + (i64)i * HEADS * DIM + x] += gqs[i * ROW + x];
      }
    }
    for (int j = 0; j < cols; j++)
      for (int x = 0; x < DIM; x++) {
        gk[at + (i64)j * KV * DIM + x] = gks[j * ROW + x];
        gv[at + (i64)j * KV * DIM + x] = gvs[j * ROW + x];
      }
  }
}
