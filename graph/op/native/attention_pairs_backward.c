// Σ go·o of each query is needed with every block of keys: it is computed once, where the stack holds all of them.
#define DELTAS_KEPT (GROUP * TQ <= 16384)

// Sums of a strip's gradients of queries are added to where they lie, if no strip is longer than the sequence.
#define IN_OUTPUT (TQ % STRIP == 0)

DOTS(over_queries, DIM, 1, BLOCK, DIM, false)
DOTS(over_keys, (IN_OUTPUT ? HEADS * DIM : DIM), BLOCK / 2, 1, DIM, !IN_OUTPUT)

FN f32 delta(const f32 *go, const result *o, f32 glse) {
  vecf d = {0};
  for (int x = 0; x < DIM; x += LANES) {
    f32 part[LANES] ALIGNED;
    for (int l = 0; l < LANES; l++) part[l] = widen_result(o[x + l]);
    d = fma_vec(at(go + x), *(vecf *)part, d);
  }
  return total(d) - glse;
}

// rounded copies a block of rows of f32, HEADS · DIM elements apart, as rows and as pairs of bf16.
static void rounded(u32 *to, u32 *paired, const f32 *from, int count) {
  static const f32 zeros[DIM];
  for (int i = 0; i < BLOCK; i += 2, to += 2 * WORDS, paired += DIM, from += 2 * HEADS * DIM) {
    const f32 *x = i < count ? from : zeros, *y = i + 1 < count ? from + HEADS * DIM : zeros;
    for (int d = 0; d < DIM; d += LANES) {
      const vecf a = at(x + d), b = at(y + d);
      *(vechu *)(to + d / 2) = narrowed_half(a);
      *(vechu *)(to + WORDS + d / 2) = narrowed_half(b);
      *(vecw *)(paired + d) = zipped(a, b);
    }
  }
}

// query is what the gradients of a query's scores need: its logsumexp, and Σ go·o.
typedef struct { f32 lse, delta; } query;

// gradients computes, for columns of the keys, the probabilities p of the queries r and r + 1 of a strip, and the
// gradients g of their scores: as pairs of the two queries, and g as rows, too.
FN void gradients(u32 *p, u32 *g, u32 *rows, const f32 *s, const f32 *ds, const query *q, const seen *by, int r, int columns, const bool whole) {
  for (int j = 0; j < columns; j += 2 * LANES) {
    vecf gs[2][2];
    UNROLL for (int v = 0; v < 2; v++) {
      vecf ps[2];
      UNROLL for (int i = 0; i < 2; i++) {
        const int x = i * BLOCK + j + v * LANES;
        vecf y = exp2_vec(fma_vec(at(s + x), splat(SCALE2), splat(-q[i].lse)));
        gs[i][v] = y * (at(ds + x) - splat(q[i].delta)) * splat(SCALE);
        if (!whole) {
          const veci is = visible(by, r + i, j + v * LANES);
          y = only(y, is);
          gs[i][v] = only(gs[i][v], is);
        }
        ps[i] = y;
      }
      *(vecw *)(p + j + v * LANES) = zipped(ps[0], ps[1]);
      *(vecw *)(g + j + v * LANES) = zipped(gs[0][v], gs[1][v]);
    }
    UNROLL for (int i = 0; i < 2; i++) *(vecw *)(rows + (i * BLOCK + j) / 2) = narrowed(gs[i][0], gs[i][1]);
  }
}

// A workgroup is a head of keys and its heads of queries, so that all sums have one order.
static void backward(u32 group, const u16 *restrict q, const u16 *restrict k, const u16 *restrict v, const result *restrict o, const f32 *restrict lse,
                     const f32 *restrict go, const f32 *restrict glse, const u32 *restrict segments, f32 *restrict gq, f32 *restrict gk,
                     f32 *restrict gv) {
  u32 qs[BLOCK * WORDS] ALIGNED, qp[BLOCK / 2 * DIM] ALIGNED, gos[BLOCK * WORDS] ALIGNED, gop[BLOCK / 2 * DIM] ALIGNED;
  u32 ks[BLOCK * WORDS] ALIGNED, kt[WORDS * BLOCK] ALIGNED, vt[WORDS * BLOCK] ALIGNED, kp[BLOCK / 2 * DIM] ALIGNED;
  u32 p[BLOCK / 2 * BLOCK] ALIGNED, gp[BLOCK / 2 * BLOCK] ALIGNED, gr[STRIP * BLOCK / 2] ALIGNED, blockSegments[BLOCK] = {0};
  f32 s[STRIP * BLOCK] ALIGNED, ds[STRIP * BLOCK] ALIGNED, gks[BLOCK * DIM] ALIGNED, gvs[BLOCK * DIM] ALIGNED, gqs[STRIP * DIM] ALIGNED;
  f32 deltas[DELTAS_KEPT ? GROUP * TQ : BLOCK];
  const int kv = group % KV, b = group / KV;
  segments += (i64)b * TK;
#define DELTA(h, i) delta(go + ((i64)(b * TQ + (i)) * HEADS + (h)) * DIM, o + ((i64)(b * TQ + (i)) * HEADS + (h)) * DIM, \
                          LSE_GRADIENT ? glse[((i64)b * HEADS + (h)) * TQ + (i)] : 0.f)
  for (int i = 0; i < TQ; i++) {
    memset(gq + ((i64)(b * TQ + i) * HEADS + kv * GROUP) * DIM, 0, sizeof(f32) * GROUP * DIM);
    for (int h = 0; h < GROUP && DELTAS_KEPT; h++) deltas[h * TQ + i] = DELTA(kv * GROUP + h, i);
  }
  for (int j0 = 0; j0 < TK; j0 += BLOCK) {
    const int cols = LEAST(BLOCK, TK - j0);
    const i64 to = ((i64)(b * TK + j0) * KV + kv) * DIM;
    copied(ks, v + to, KV * DIM, cols);
    columns(vt, ks);
    copied(ks, k + to, KV * DIM, cols);
    columns(kt, ks);
    pairs(kp, ks);
    memset(gks, 0, sizeof gks);
    memset(gvs, 0, sizeof gvs);
    int past = TQ, unused;
    if (SEGMENTS) {
      edges(segments, j0, cols, TK, &unused, &past);
      memcpy(blockSegments, segments + j0, 4 * cols);
    }
    if (WINDOW) past = LEAST(past, j0 + cols - 1 + WINDOW); // the last key's window ends before it
    for (int h = kv * GROUP; h < (kv + 1) * GROUP; h++)
      for (int i0 = j0; i0 < past; i0 += BLOCK) {
        const int rows = LEAST(BLOCK, TQ - i0), end = LEAST(rows, past - i0); // queries from end on see none of these keys
        const i64 from = ((i64)(b * TQ + i0) * HEADS + h) * DIM, row0 = ((i64)b * HEADS + h) * TQ + i0;
        const f32 *d = DELTAS_KEPT ? deltas + (h - kv * GROUP) * TQ + i0 : deltas;
        for (int i = 0; i < rows && !DELTAS_KEPT; i++) deltas[i] = DELTA(h, i0 + i);
        copied(qs, q + from, HEADS * DIM, rows);
        pairs(qp, qs);
        rounded(gos, gop, go + from, rows);
        for (int i = 0; i < end; i += STRIP) {
          const seen by = seen_by(i0 + i, rows - i, j0, cols, blockSegments, segments + i0 + i);
          const int width = by.keys <= BLOCK / 2 ? BLOCK / 2 : BLOCK;
          scores(s, qs + i * WORDS, kt, width, WORDS);
          scores(ds, gos + i * WORDS, vt, width, WORDS);
          for (int r = 0; r < STRIP; r += 2) {
            u32 *ps = p + (i + r) / 2 * BLOCK, *gs = gp + (i + r) / 2 * BLOCK, *row = gr + r * BLOCK / 2;
            query of[2];
            for (int x = 0; x < 2; x++) of[x] = r + x < by.rows ? (query){lse[row0 + i + r + x] * LOG2E, d[i + r + x]} : (query){0, 0};
            if (by.whole) gradients(ps, gs, row, s + r * BLOCK, ds + r * BLOCK, of, &by, r, BLOCK, true);
            else gradients(ps, gs, row, s + r * BLOCK, ds + r * BLOCK, of, &by, r, width, false);
          }
          over_keys(IN_OUTPUT ? gq + from + (i64)i * HEADS * DIM : gqs, gr, kp, DIM, (by.keys + 1) / 2);
          for (int r = 0; r < by.rows && !IN_OUTPUT; r++)
            for (int x = 0; x < DIM; x++) gq[from + (i64)(i + r) * HEADS * DIM + x] += gqs[r * DIM + x];
        }
        for (int j = 0; j < cols; j += STRIP) {
          const int first = MOST(j0 + j - i0, 0), strips = (end + STRIP - 1) / STRIP * STRIP; // queries before first see none of the keys
          const int last = WINDOW ? LEAST(strips, (j0 + j + 2 * STRIP - 2 + WINDOW - i0) / STRIP * STRIP) : strips;
          if (first >= last) continue;
          over_queries(gvs + j * DIM, p + first / 2 * BLOCK + j, gop + first / 2 * DIM, DIM, (last - first) / 2);
          over_queries(gks + j * DIM, gp + first / 2 * BLOCK + j, qp + first / 2 * DIM, DIM, (last - first) / 2);
        }
      }
    for (int j = 0; j < cols; j++) {
      memcpy(gk + to + (i64)j * KV * DIM, gks + j * DIM, sizeof(f32) * DIM);
      memcpy(gv + to + (i64)j * KV * DIM, gvs + j * DIM, sizeof(f32) * DIM);
    }
  }
}
