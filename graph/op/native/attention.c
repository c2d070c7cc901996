// Attention on a CPU, by blocks of queries and keys whose scores stay in the cache (Dao, "FlashAttention-2", 2023). The
// operands of a block are copied into rows of ROW floats, padded with zeros, so all products run over whole vectors.
// The caller defines BATCH, TQ, TK, HEADS, KV, GROUP, DIM, SCALE, operand and result (element types), widen_operand,
// widen_result and narrow_result, POSITION, SEGMENTS and LSE_GRADIENT.
#define ROW ((DIM + VEC - 1) / VEC * VEC)
#if VEC_BYTES == 16
#define PART 8 // elements: a vector, or two of four
#else
#define PART VEC
#endif
#define KEYS 32 // in a block: a multiple of VEC
#define QUERIES (TQ < 64 ? (TQ + PART - 1) / PART * PART : 64) // in a block: a multiple of PART
#define BLOCKS ((TQ + QUERIES - 1) / QUERIES)
#define LOWEST -3.0e38f

#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#define UNROLL _Pragma("GCC unroll 8")

// PRODUCT defines a function that adds a·b to m rows of c, over n vectors of columns: c[i][…] += Σ a[i·row + k·step]·b[k][…].
#define PRODUCT(m, n) \
  FN void product##m##n(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int depth) { \
    vecf sum[m][n]; \
    UNROLL for (int i = 0; i < m; i++) { UNROLL for (int v = 0; v < n; v++) sum[i][v] = *(vecfu *)(c + i * pitch + v * VEC); } \
    for (int k = 0; k < depth; k++) { \
      vecf y[n]; \
      UNROLL for (int v = 0; v < n; v++) y[v] = *(const vecfu *)(b + (i64)k * width + v * VEC); \
      UNROLL for (int i = 0; i < m; i++) { \
        vecf x = a[i * row + k * step] - (vecf){}; \
        UNROLL for (int v = 0; v < n; v++) sum[i][v] += x * y[v]; \
      } \
    } \
    UNROLL for (int i = 0; i < m; i++) { UNROLL for (int v = 0; v < n; v++) *(vecfu *)(c + i * pitch + v * VEC) = sum[i][v]; } \
  }
PRODUCT(4, 1) PRODUCT(4, 2) PRODUCT(4, 4) PRODUCT(8, 1) PRODUCT(8, 2)

// multiply adds a·b to c, of rows (a multiple of 8) and cols (a multiple of VEC). The tiles fill the registers of AVX-512,
// or of narrower instruction sets.
static void multiply(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int rows, int cols, int depth) {
#define TILES(m, n) \
  for (; j + n * VEC <= cols; j += n * VEC) \
    for (int i = 0; i < rows; i += m) product##m##n(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth);
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

// ROWS defines a function that copies rows of an array, pitch elements apart, into padded rows; those from count on are
// zeros.
#define ROWS(element) \
  static void rows_##element(f32 *to, const element *from, i64 pitch, int count, int rows) { \
    for (int i = 0; i < rows; i++) { \
      for (int x = 0; x < ROW; x++) to[i * ROW + x] = 0; \
      for (int x = 0; x < DIM && i < count; x++) to[i * ROW + x] = widen_##element(from[i * pitch + x]); \
    } \
  }
ROWS(operand)

// turned copies rows as columns.
static void turned(f32 *to, const f32 *from, int rows) {
  for (int x = 0; x < DIM; x++)
    for (int i = 0; i < rows; i++) to[x * rows + i] = from[i * ROW + x];
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
