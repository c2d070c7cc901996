// The factor Q of matrices [M, N] by Householder reflections. Four rows at a time are multiplied and added before they
// are added to a sum.

// apply subtracts d·v from columns first to last of rows from r on, where d is β·vᵀ·column.
static void apply(f32 *restrict m, const f32 *restrict v, u64 r, u64 first, u64 last, f32 beta) {
  f32 d[N], four[N];
  for (u64 j = first; j < last; j++) d[j] = 0.0f;
  for (u64 top = r; top < M; top += 4) {
    for (u64 j = first; j < last; j++) four[j] = v[top] * m[top * N + j];
    for (u64 q = top + 1; q < top + 4 && q < M; q++)
      for (u64 j = first; j < last; j++) four[j] += v[q] * m[q * N + j];
    for (u64 j = first; j < last; j++) d[j] += four[j];
  }
  for (u64 j = first; j < last; j++) d[j] *= beta;
  for (u64 q = r; q < M; q++)
    for (u64 j = first; j < last; j++) m[q * N + j] -= d[j] * v[q];
}

// column copies column k of a matrix.
static void column(f32 *restrict v, const f32 *restrict m, u64 k) {
  for (u64 r = 0; r < M; r++) v[r] = m[r * N + k];
}

// reflections stores the vector v of reflection k to column k of the matrix, from row k on, and its β.
static void reflections(f32 *restrict m, f32 *restrict betas) {
  f32 v[M], multiple;
  for (u64 k = 0; k < N; k++) {
    betas[k] = reflection(m + k * N + k, N, M - k, &multiple);
    column(v, m, k);
    apply(m, v, k, k + 1, N, betas[k]);
  }
}

// factor applies the reflections, the last one first, to columns first to last of the identity. An element of R's
// diagonal has the opposite sign of the first element of its reflection's vector.
static void factor(f32 *restrict q, const f32 *restrict m, const f32 *restrict betas, u64 first, u64 last) {
  f32 v[M];
  for (u64 j = first; j < last; j++) {
    const f32 sign = betas[j] > 0.0f && m[j * N + j] > 0.0f ? -1.0f : 1.0f;
    for (u64 r = 0; r < M; r++) q[r * N + j] = r == j ? sign : 0.0f;
  }
  for (u64 left = last; left > 0; left--) {
    column(v, m, left - 1);
    apply(q, v, left - 1, first, last, betas[left - 1]);
  }
}
