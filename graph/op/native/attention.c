// Attention on a CPU, by blocks of queries and keys whose scores stay in the cache (Dao, "FlashAttention-2", 2023). The
// operands of a block are copied into rows of ROW floats, padded with zeros, so all products run over whole vectors,
// unless they can be read in place.
// The caller defines BATCH, TQ, TK, HEADS, KV, GROUP, DIM, SCALE, operand and result (element types), widen_operand,
// widen_result and narrow_result, POSITION, SEGMENTS, LSE_GRADIENT, WINDOW (0: none), CACHES (0: each sequence
// reads the keys of its number, at one position) and BLOCK, the most queries of a block.
#define ROW ((DIM + VEC - 1) / VEC * VEC)
#if VEC_BYTES == 16
#define PART 8 // elements: a vector, or two of four
#else
#define PART VEC
#endif
#define KEYS 32 // in a block: a multiple of 2·VEC
#define HALF (KEYS / 2)
#define QUERIES (TQ < BLOCK ? (TQ + PART - 1) / PART * PART : BLOCK) // in a block: a multiple of PART
#define BLOCKS ((TQ + QUERIES - 1) / QUERIES)
#define LOWEST -3.0e38f

#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#define UNROLL _Pragma("GCC unroll 8")

// PRODUCT defines a function that adds a·b to m rows of c, over n vectors of columns:
// c[i][…] += Σ a[i·row + k·step]·b[k][…]. If begin, the sums start at zero.
#define PRODUCT(name, m, n) \
  FN void name(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int depth, bool begin) { \
    vecf sum[m][n]; \
    UNROLL for (int i = 0; i < m; i++) { UNROLL for (int v = 0; v < n; v++) sum[i][v] = begin ? (vecf){} : (vecf)(*(vecfu *)(c + i * pitch + v * VEC)); } \
    for (int k = 0; k < depth; k++) { \
      vecf y[n]; \
      UNROLL for (int v = 0; v < n; v++) y[v] = *(const vecfu *)(b + (i64)k * width + v * VEC); \
      UNROLL for (int i = 0; i < m; i++) { \
        vecf x = a[i * row + k * step] - (vecf){}; \
        UNROLL for (int v = 0; v < n; v++) sum[i][v] = fma_vec(x, y[v], sum[i][v]); \
      } \
    } \
    UNROLL for (int i = 0; i < m; i++) { UNROLL for (int v = 0; v < n; v++) *(vecfu *)(c + i * pitch + v * VEC) = sum[i][v]; } \
  }
PRODUCT(product41, 4, 1) PRODUCT(product42, 4, 2) PRODUCT(product44, 4, 4) PRODUCT(product81, 8, 1) PRODUCT(product82, 8, 2)

// multiply computes c += a·b, or c = a·b if begin. rows is a multiple of 8, cols a multiple of VEC. The tiles fill the
// registers of AVX-512, or of narrower instruction sets.
FN void multiply(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int rows, int cols, int depth, bool begin) {
#define TILES(m, n) \
  for (; j + n * VEC <= cols; j += n * VEC) \
    for (int i = 0; i < rows; i += m) product##m##n(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth, begin);
  int j = 0;
#if VEC_BYTES == 64
  TILES(4, 4)
  TILES(8, 2)
  TILES(8, 1)
#else
  TILES(4, 2)
  TILES(4, 1)
#endif
}

// MULTIPLY defines a function that calls multiply with constant strides and a constant number of columns.
#define MULTIPLY(name, pitch, row, step, width, cols, begin) \
  static __attribute__((noinline)) void name(f32 *c, const f32 *a, const f32 *b, int rows, int depth) { \
    multiply(c, pitch, a, row, step, b, width, rows, cols, depth, begin); \
  }

// ROWS defines a function that copies rows of an array, pitch elements apart, into padded rows; those from count on are
// zeros.
#define ROWS(name, element) \
  static void name(f32 *to, const element *from, i64 pitch, int count, int rows) { \
    for (int i = 0; i < rows; i++) { \
      for (int x = 0; x < ROW; x++) to[i * ROW + x] = 0; \
      for (int x = 0; x < DIM && i < count; x++) to[i * ROW + x] = widen_##element(from[i * pitch + x]); \
    } \
  }
ROWS(rows_operand, operand)

// Rows that are whole blocks of whole vectors of f32 are read where they lie.
#define IN_PLACE (sizeof(operand) == 4 && DIM % VEC == 0 && TQ % QUERIES == 0 && TK % KEYS == 0 && !POSITION)
#define QUERY_ROW (IN_PLACE ? HEADS * DIM : ROW)
#define KEY_ROW (IN_PLACE ? KV * DIM : ROW)

// placed returns rows where they lie, or their copy.
static inline const f32 *placed(f32 *copy, const operand *from, i64 pitch, int count, int rows) {
  if (IN_PLACE) return (const f32 *)from;
  rows_operand(copy, from, pitch, count, rows);
  return copy;
}

typedef f32 vec4 __attribute__((vector_size(16)));
typedef f32 vec4u __attribute__((vector_size(16), aligned(4), may_alias));
typedef u32 vec4w __attribute__((vector_size(16)));
#if defined(__clang__)
#define SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define SHUFFLE(x, y, a, b, c, d) __builtin_shuffle(x, y, (vec4w){a, b, c, d})
#endif

// turned copies rows, a multiple of four that lie pitch elements apart, as columns.
static inline void turned(f32 *to, const f32 *from, int pitch, int rows) {
  for (int x = 0; x < DIM / 4 * 4; x += 4)
    for (int i = 0; i < rows; i += 4) {
      const f32 *p = from + i * pitch + x;
      vec4 a = *(const vec4u *)p, b = *(const vec4u *)(p + pitch), c = *(const vec4u *)(p + 2 * pitch), d = *(const vec4u *)(p + 3 * pitch);
      vec4 ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5), ef = SHUFFLE(a, b, 2, 6, 3, 7), gh = SHUFFLE(c, d, 2, 6, 3, 7);
      f32 *t = to + x * rows + i;
      *(vec4u *)t = SHUFFLE(ab, cd, 0, 1, 4, 5);
      *(vec4u *)(t + rows) = SHUFFLE(ab, cd, 2, 3, 6, 7);
      *(vec4u *)(t + 2 * rows) = SHUFFLE(ef, gh, 0, 1, 4, 5);
      *(vec4u *)(t + 3 * rows) = SHUFFLE(ef, gh, 2, 3, 6, 7);
    }
  for (int x = DIM / 4 * 4; x < DIM; x++)
    for (int i = 0; i < rows; i++) to[x * rows + i] = from[i * pitch + x];
}

// edges are the first and the last of count keys whose segment lies between the smallest and the largest of rows
// consecutive ones; other keys need not be looked at.
static inline void edges(const u32 *segments, int from, int rows, int count, int *first, int *past) {
  u32 low = segments[from], high = low;
  for (int i = from; i < from + rows; i++) { low = LEAST(low, segments[i]); high = segments[i] > high ? segments[i] : high; }
  int a = from, z = from + rows;
  for (int j = count - 1; j >= 0; j--)
    if (segments[j] >= low && segments[j] <= high) { a = LEAST(a, j); z = j + 1 > z ? j + 1 : z; }
  *first = a;
  *past = z;
}
