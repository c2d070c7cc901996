DOTS(weigh, DIM, BLOCK / 2, 1, DIM, false)

// SLACK is how far the exponent of a probability may exceed zero before the sums are scaled again: they are where a
// query's largest score grows by more. That is rare, so the exponents wait for no maximum.
#define SLACK 8.f

FN f32 largest(vecf x) {
  x = larger(x, ROTATED(x, 8));
  x = larger(x, ROTATED(x, 4));
  x = larger(x, ROTATED(x, 2));
  return larger(x, ROTATED(x, 1))[0];
}

// state is that of a query. Its sum and its row of os are scaled by 2^−top.
typedef struct { vecf sum; f32 top; } state;

// probabilities replaces n vectors of a query's scores by factors of its values, and adds them to its sum.
FN void probabilities(u32 *p, const f32 *s, state *q, f32 *o, const seen *by, int r, const int n, const bool whole) {
  vecf x[BLOCK / LANES], most = splat(LOWEST);
  UNROLL for (int v = 0; v < n; v++) {
    x[v] = at(s + v * LANES);
    if (!whole) {
      const veci is = visible(by, r, v * LANES);
      x[v] = (vecf)((veci)only(x[v], is) | ((veci)splat(LOWEST) & ~is));
    }
    most = larger(x[v], most);
  }
  const f32 top = largest(most) * SCALE2;
  if (top > q->top + SLACK) {
    const vecf keep = exp2_vec(splat(q->top - top));
    q->top = top;
    q->sum *= keep;
    for (int d = 0; d < DIM; d += LANES) *(vecf *)(o + d) = *(vecf *)(o + d) * keep;
  }
  const vecf less = splat(-q->top);
  UNROLL for (int v = 0; v < n; v++) {
    x[v] = exp2_vec(fma_vec(x[v], splat(SCALE2), less));
    if (!whole) x[v] = only(x[v], visible(by, r, v * LANES));
    q->sum += x[v];
  }
  UNROLL for (int v = 0; v < n; v += 2) *(vecw *)(p + v * LANES / 2) = narrowed(x[v], x[v + 1]);
}

// A workgroup is a block of queries of one head. There are no caches, and so no slots.
static void forward(u32 group, const u16 *restrict q, const u16 *restrict k, const u16 *restrict v, result *restrict o, f32 *restrict lse,
                    const u32 *restrict segments, const u32 *restrict slots) {
  u32 qs[BLOCK * WORDS] ALIGNED, ks[BLOCK * WORDS] ALIGNED, kt[WORDS * BLOCK] ALIGNED, vs[BLOCK / 2 * DIM] ALIGNED;
  u32 p[STRIP * BLOCK / 2] ALIGNED, blockSegments[BLOCK] = {0};
  f32 s[STRIP * BLOCK] ALIGNED, os[BLOCK * DIM] ALIGNED;
  state queries[BLOCK];
  const int blocks = (TQ + BLOCK - 1) / BLOCK, h = group % HEADS, b = group / HEADS / blocks, i0 = group / HEADS % blocks * BLOCK;
  const int rows = LEAST(BLOCK, TQ - i0), past = LEAST(i0 + rows, TK);
  int start = 0, unused;
  if (SEGMENTS) {
    segments += (i64)b * TK;
    edges(segments, i0, rows, past, &start, &unused);
  }
  if (WINDOW) start = MOST(start, LEAST(i0 + 1 - WINDOW, past));
  copied(qs, q + ((i64)(b * TQ + i0) * HEADS + h) * DIM, HEADS * DIM, rows);
  memset(os, 0, sizeof os);
  for (int i = 0; i < BLOCK; i++) queries[i] = (state){{0}, LOWEST};
  for (int j0 = start / BLOCK * BLOCK; j0 < past; j0 += BLOCK) {
    const int cols = LEAST(BLOCK, TK - j0);
    const i64 from = ((i64)(b * TK + j0) * KV + h / GROUP) * DIM;
    copied(ks, k + from, KV * DIM, cols);
    columns(kt, ks);
    copied(ks, v + from, KV * DIM, cols);
    pairs(vs, ks);
    if (SEGMENTS) memcpy(blockSegments, segments + j0, 4 * cols);
    for (int i = 0; i < rows; i += STRIP) {
      const seen by = seen_by(i0 + i, rows - i, j0, cols, blockSegments, segments + i0 + i);
      if (WINDOW && by.last - WINDOW >= cols - 1) continue; // all keys are older than the windows
      const int half = by.keys <= BLOCK / 2;
      scores(s, qs + i * WORDS, kt, half ? BLOCK / 2 : BLOCK, WORDS);
      for (int r = 0; r < STRIP; r++) {
        u32 *to = p + r * BLOCK / 2;
        const f32 *row = s + r * BLOCK;
        if (by.whole) probabilities(to, row, queries + i + r, os + (i + r) * DIM, &by, r, BLOCK / LANES, true);
        else if (half) probabilities(to, row, queries + i + r, os + (i + r) * DIM, &by, r, BLOCK / LANES / 2, false);
        else probabilities(to, row, queries + i + r, os + (i + r) * DIM, &by, r, BLOCK / LANES, false);
      }
      weigh(os + i * DIM, p, vs, DIM, (by.keys + 1) / 2);
    }
  }
  for (int i = 0; i < rows; i++) {
    f32 sum = total(queries[i].sum);
    lse[((i64)b * HEADS + h) * TQ + i0 + i] = queries[i].top / LOG2E + log_f32(sum);
    sum = 1.f / sum;
    result *to = o + ((i64)(b * TQ + i0 + i) * HEADS + h) * DIM;
    for (int x = 0; x < DIM; x++) to[x] = narrow_result(os[i * DIM + x] * sum);
  }
}
