// Attention of bf16 by VDPBF16PS of x86-64, which adds the products of pairs of elements to sums in f32. A word is a
// pair: two elements that follow each other along the dimension that is summed. Scores, the softmax and sums are in
// f32; probabilities, the gradients of scores and the gradient of o are rounded to bf16 where they are factors.
//
// DIM is a multiple of 16. A block of queries or keys has BLOCK rows, of which STRIP are computed at once. Rows behind
// the last one of a sequence are zeros. Instructions are assembly, since compilers take long to read the header of
// intrinsics.
#define STRIP 8
#define WORDS (DIM / 2) // of a row
#define LOG2E 1.44269504f
#define SCALE2 (SCALE * LOG2E)
#define LANES 16

typedef u32 vecw __attribute__((vector_size(64)));
typedef u32 vecwu __attribute__((vector_size(64), aligned(2), may_alias));
typedef i32 veci __attribute__((vector_size(64)));
typedef u16 vech __attribute__((vector_size(32)));
typedef u16 vechu __attribute__((vector_size(32), aligned(2), may_alias));
typedef u16 vecz __attribute__((vector_size(64)));
#define ALIGNED __attribute__((aligned(64)))

FN vecf at(const f32 *p) { return *(const vecfu *)p; }
FN vecf splat(f32 x) { return x - (vecf){0}; }
FN vecf larger(vecf x, vecf y) { vecf z; __asm__("vmaxps %2, %1, %0" : "=v"(z) : "v"(x), "v"(y)); return z; }
FN vecf dot(vecf sum, vecw a, vecw b) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a)); return sum; }

// narrowed has the elements of low, and behind them those of high, in bf16.
FN vecw narrowed(vecf low, vecf high) { vecw y; __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(y) : "v"(low), "v"(high)); return y; }

FN vech narrowed_half(vecf x) { vech y; __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x)); return y; }

// zipped has pairs of elements of x and y in bf16.
FN vecw zipped(vecf x, vecf y) {
  const vecz order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  vecw z;
  __asm__("vpermw %1, %2, %0" : "=v"(z) : "v"(narrowed(x, y)), "v"(order));
  return z;
}

// ROTATED has the lanes of x from n on, and then those before.
#if defined(__clang__)
#define ROTATED(x, n) __builtin_shufflevector(x, x, (0 + n) % 16, (1 + n) % 16, (2 + n) % 16, (3 + n) % 16, (4 + n) % 16, (5 + n) % 16, (6 + n) % 16, \
  (7 + n) % 16, (8 + n) % 16, (9 + n) % 16, (10 + n) % 16, (11 + n) % 16, (12 + n) % 16, (13 + n) % 16, (14 + n) % 16, (15 + n) % 16)
#else
#define ROTATED(x, n) __builtin_shuffle(x, ((vecw){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + n) % 16)
#endif
// total is the sum of the lanes.
FN f32 total(vecf x) {
  x += ROTATED(x, 8);
  x += ROTATED(x, 4);
  x += ROTATED(x, 2);
  return (x + ROTATED(x, 1))[0];
}

// exp2_vec is 2ˣ to 2⁻²²: 2ʳ of the fraction r of x by a polynomial, and its integer added to the exponent.
FN vecf exp2_vec(vecf x) {
  vecf r, y;
  __asm__("vreduceps $9, %1, %0" : "=v"(r) : "v"(x));
  vecf p = fma_vec(splat(1.8775767e-3f), r, splat(8.9893397e-3f));
  p = fma_vec(p, r, splat(5.5826318e-2f));
  p = fma_vec(p, r, splat(2.4015361e-1f));
  p = fma_vec(p, r, splat(6.9315308e-1f));
  p = fma_vec(p, r, splat(9.9999994e-1f));
  __asm__("vscalefps %2, %1, %0" : "=v"(y) : "v"(p), "v"(x));
  return y;
}

// dots adds a·b to STRIP rows of c, over n vectors of columns and depth pairs: c[i][…] += Σ a[i·row + k·step]·b[k][…].
// If begin, the sums start at zero.
FN void dots(f32 *c, int pitch, const u32 *a, int row, int step, const u32 *b, int width, int depth, bool begin, const int n) {
  vecf sum[STRIP][2];
  UNROLL for (int i = 0; i < STRIP; i++) { UNROLL for (int v = 0; v < n; v++) sum[i][v] = begin ? (vecf){0} : at(c + i * pitch + v * LANES); }
  for (int k = 0; k < depth; k++) {
    vecw y[2];
    UNROLL for (int v = 0; v < n; v++) y[v] = *(const vecw *)(b + k * width + v * LANES);
    UNROLL for (int i = 0; i < STRIP; i++) {
      const vecw x = a[i * row + k * step] - (vecw){0};
      UNROLL for (int v = 0; v < n; v++) sum[i][v] = dot(sum[i][v], x, y[v]);
    }
  }
  UNROLL for (int i = 0; i < STRIP; i++) { UNROLL for (int v = 0; v < n; v++) *(vecfu *)(c + i * pitch + v * LANES) = sum[i][v]; }
}

// DOTS defines a function that calls dots for columns, a multiple of LANES, with constant strides.
#define DOTS(name, pitch, row, step, width, begin) \
  static __attribute__((noinline)) void name(f32 *c, const u32 *a, const u32 *b, int columns, int depth) { \
    int j = 0; \
    for (; j + 2 * LANES <= columns; j += 2 * LANES) dots(c + j, pitch, a, row, step, b + j, width, depth, begin, 2); \
    if (j < columns) dots(c + j, pitch, a, row, step, b + j, width, depth, begin, 1); \
  }
DOTS(scores, BLOCK, WORDS, 1, BLOCK, true)

// copied copies a block of rows that lie pitch elements apart, of which there are count.
static void copied(u32 *to, const u16 *from, i64 pitch, int count) {
  for (int i = 0; i < count; i++) memcpy(to + i * WORDS, from + i * pitch, 2 * DIM);
  memset(to + count * WORDS, 0, 2 * DIM * (BLOCK - count));
}

// columns copies rows as columns of words.
static void columns(u32 *to, const u32 *rows) {
  for (int x = 0; x < WORDS; x += 4)
    for (int i = 0; i < BLOCK; i += 4) {
      const f32 *p = (const f32 *)(rows + i * WORDS + x);
      vec4 a = *(const vec4u *)p, b = *(const vec4u *)(p + WORDS), c = *(const vec4u *)(p + 2 * WORDS), d = *(const vec4u *)(p + 3 * WORDS);
      vec4 ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5), ef = SHUFFLE(a, b, 2, 6, 3, 7), gh = SHUFFLE(c, d, 2, 6, 3, 7);
      f32 *t = (f32 *)(to + x * BLOCK + i);
      *(vec4u *)t = SHUFFLE(ab, cd, 0, 1, 4, 5);
      *(vec4u *)(t + BLOCK) = SHUFFLE(ab, cd, 2, 3, 6, 7);
      *(vec4u *)(t + 2 * BLOCK) = SHUFFLE(ef, gh, 0, 1, 4, 5);
      *(vec4u *)(t + 3 * BLOCK) = SHUFFLE(ef, gh, 2, 3, 6, 7);
    }
}

// pairs copies rows as pairs of elements of two rows: [BLOCK / 2][DIM].
static void pairs(u32 *to, const u32 *rows) {
  for (int i = 0; i < BLOCK; i += 2, rows += 2 * WORDS, to += DIM)
    for (int x = 0; x < DIM; x += LANES) {
      const vech a = *(const vechu *)(rows + x / 2), b = *(const vechu *)(rows + WORDS + x / 2);
      *(vecw *)(to + x) = __builtin_convertvector(a, vecw) | __builtin_convertvector(b, vecw) << 16;
    }
}

// seen is what the queries of a strip see of a block of keys.
typedef struct {
  int keys;            // those from it on are seen by none
  bool whole;          // each query sees each key
  int rows;            // of the strip that are queries
  int last;            // key that the first query sees, counted from the block's first one; negative: none
  const u32 *segments; // of the block's keys
  const u32 *own;      // segments of the queries
  int cols;            // of the block
} seen;

FN seen seen_by(int i0, int rows, int j0, int cols, const u32 *segments, const u32 *own) {
  const int last = i0 - j0;
  seen s = {LEAST(cols, last + STRIP), false, LEAST(rows, STRIP), last, segments, own, cols};
  s.whole = !SEGMENTS && cols == BLOCK && rows >= STRIP && last >= BLOCK - 1 && (!WINDOW || last + STRIP - 1 < WINDOW);
  return s;
}

// visible has all bits of the lanes of keys, from j on, that query r of a strip sees.
FN veci visible(const seen *s, int r, int j) {
  const veci key = (veci){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + j;
  veci is = key <= (r < s->rows ? LEAST(s->last + r, s->cols - 1) : -1);
  if (WINDOW) is &= key > s->last + r - WINDOW;
  if (SEGMENTS) is &= (veci)(*(const vecwu *)(s->segments + j) == s->own[r < s->rows ? r : 0]);
  return is;
}
FN vecf only(vecf x, veci is) { return (vecf)((veci)x & is); }
