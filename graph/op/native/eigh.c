// The eigendecomposition of symmetric matrices [N, N]: see EighOp.Kernel. Rows and columns have an index of 64 bits.

// tridiagonal divides the matrix x by its largest element, in a, and reduces it to tridiagonal form. Reflection k
// leaves its vector v in column k of a, from row k+1 on. s are the diagonal, the off-diagonal, β, w and the unit, of N
// each.
static void tridiagonal(f32 *restrict a, f32 *restrict s, const f32 *restrict x) {
  f32 *const off = s + N, *const betas = off + N, *const w = betas + N;
  f32 top = 0.0f, v[N];
  for (u64 i = 0; i < N; i++)
    for (u64 j = 0; j <= i; j++) {
      const f32 y = x[i * N + j];
      const bool finite = (as_u32_f32(y) & 0x7f800000u) != 0x7f800000u; // compilers may assume that no float is NaN
      top = max_f32(top, finite ? abs_f32(y) : 3.4e38f);
    }
  const bool usable = top > 1e-37f && top < 3.3e38f;
  for (u64 i = 0; i < N; i++)
    for (u64 j = 0; j < N; j++) a[i * N + j] = usable ? x[i > j ? i * N + j : j * N + i] / top : 0.0f;
  s[4 * N] = usable ? top : 0.0f;
  for (u64 k = 0; k + 1 < N; k++) {
    const f32 beta = reflection(a + (k + 1) * N + k, N, N - 1 - k, off + k);
    betas[k] = beta;
    for (u64 j = k + 1; j < N; j++) v[j] = a[j * N + k], w[j] = 0.0f;
    for (u64 i = k + 1; i < N; i++)
      for (u64 j = k + 1; j < N; j++) w[j] += v[i] * a[i * N + j];
    // w = β·A·v − (β/2·vᵀ(β·A·v))·v
    f32 part[LANES] = {0};
    for (u64 j = k + 1; j < N; j++) w[j] *= beta, part[(j - k - 1) % LANES] += w[j] * v[j];
    const f32 half = 0.5f * beta * total(part);
    for (u64 j = k + 1; j < N; j++) w[j] -= half * v[j];
    for (u64 i = k + 1; i < N; i++)
      for (u64 j = k + 1; j < N; j++) a[i * N + j] -= v[i] * w[j] + w[i] * v[j];
  }
  for (u64 k = 0; k < N; k++) s[k] = a[k * N + k];
}

// basis multiplies the reflections, the first one first. Element (r, c) of the product is z[c, r]; a call computes rows
// from first to last.
static void basis(f32 *restrict z, const f32 *restrict a, const f32 *restrict betas, u64 first, u64 last) {
  f32 d[ROWS];
  for (u64 c = 0; c < N; c++)
    for (u64 r = first; r < last; r++) z[c * N + r] = c == r ? 1.0f : 0.0f;
  for (u64 k = 0; k + 2 <= N; k++) {
    for (u64 r = first; r < last; r++) d[r - first] = 0.0f;
    for (u64 c = k + 1; c < N; c++)
      for (u64 r = first; r < last; r++) d[r - first] += z[c * N + r] * a[c * N + k];
    for (u64 r = first; r < last; r++) d[r - first] *= betas[k];
    for (u64 c = k + 1; c < N; c++)
      for (u64 r = first; r < last; r++) z[c * N + r] -= d[r - first] * a[c * N + k];
  }
}

static f32 root(f32 x, f32 y) { return sqrt_f32(x * x + y * y); }

// diagonal turns the tridiagonal matrix into a diagonal one by rotations, which it applies to rows from first to last
// of the eigenvectors. s are the diagonal and the off-diagonal, now and next. It gives up on an eigenvalue after 30
// sweeps.
static void diagonal(f32 *restrict s, f32 *restrict z, const f32 *restrict from, u64 first, u64 last) {
  f32 *const d = s, *const e = d + N, *const nextD = e + N, *const nextE = nextD + N, upper[ROWS];
  memcpy(s, from, 2 * N * sizeof(f32));
  for (u64 l = 0; l + 1 < N; l++) {
    for (u32 sweep = 0; sweep < 30; sweep++) {
      u64 m = l;
      for (; m + 1 < N; m++) {
        const f32 x = abs_f32(e[m]);
        if (x <= 1e-8f || x <= 6e-8f * (abs_f32(d[m]) + abs_f32(d[m + 1]))) break;
      }
      if (m == l) break;
      const f32 q = (d[l + 1] - d[l]) / (2.0f * e[l]), shift = e[l] / (q + (q < 0.0f ? -1.0f : 1.0f) * root(q, 1.0f));
      f32 g = d[m] - d[l] + shift, sine = 1.0f, cosine = 1.0f, p = 0.0f;
      u64 i = m;
      for (u64 r = first; r < last; r++) upper[r - first] = z[m * N + r];
      for (; i > l; i--) {
        const f32 f = sine * e[i - 1], b = cosine * e[i - 1], r = root(f, g), at = d[i] - p;
        nextE[i] = r;
        if (r < 1e-18f) { // the matrix falls apart here
          nextD[i] = at;
          break;
        }
        sine = f / r, cosine = g / r;
        // What division and root lack of a rotation must not add up over thousands of them.
        const f32 fit = 1.5f - 0.5f * (sine * sine + cosine * cosine);
        sine *= fit, cosine *= fit;
        const f32 t = (d[i - 1] - at) * sine + 2.0f * cosine * b;
        p = sine * t, g = cosine * t - b;
        nextD[i] = at + p;
        for (u64 row = first; row < last; row++) {
          const f32 lower = z[(i - 1) * N + row], high = upper[row - first];
          z[i * N + row] = sine * lower + cosine * high;
          upper[row - first] = cosine * lower - sine * high;
        }
      }
      for (u64 r = first; r < last; r++) z[i * N + r] = upper[r - first];
      if (i == l) nextD[l] = d[l] - p, nextE[l] = g;
      for (u64 j = i; j <= m; j++) d[j] = nextD[j], e[j] = j == m ? 0.0f : nextE[j];
    }
  }
}

// sorted stores eigenvalues first to last, and their eigenvectors, in the places of a descending order.
static void sorted(f32 *restrict values, f32 *restrict vectors, const f32 *restrict d, const f32 *restrict z, f32 unit, u64 first, u64 last) {
  for (u64 i = first; i < last; i++) {
    u64 rank = 0;
    for (u64 j = 0; j < N; j++) rank += d[j] > d[i] || (d[j] == d[i] && j < i);
    f32 most = 0.0f, squares = 0.0f;
    for (u64 r = 0; r < N; r++) {
      const f32 x = z[i * N + r];
      most = abs_f32(x) > abs_f32(most) ? x : most;
      squares += x * x;
    }
    const f32 scale = (most < 0.0f ? -1.0f : 1.0f) / sqrt_f32(squares); // rotations by small angles have made it a little longer
    values[rank] = d[i] * unit;
    for (u64 r = 0; r < N; r++) vectors[r * N + rank] = scale * z[i * N + r];
  }
}
