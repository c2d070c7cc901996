// Attention on a CPU, by blocks of queries and keys whose scores stay in the cache (Dao, "FlashAttention-2", 2023). The
// operands of a block are copied into rows of ROW floats, padded with zeros, so all products run over whole vectors.
// The caller defines BATCH, TQ, TK, HEADS, KV, GROUP, DIM, SCALE, operand and result (element types), widen_operand,
// widen_result and narrow_result, POSITION, SEGMENTS and LSE_GRADIENT.
#define ROW ((DIM + VEC - 1) / VEC * VEC)
#define KEYS 64 // in a block: a multiple of VEC
#define QUERIES (TQ < 32 ? (TQ + 3) / 4 * 4 : 32) // in a block: a multiple of 4
#define BLOCKS ((TQ + QUERIES - 1) / QUERIES)
#define LOWEST -3.0e38f

#define LEAST(x, y) ((x) < (y) ? (x) : (y))

// PRODUCT defines a function that adds a·b to 4 rows of c, over n vectors of columns: c[i][…] += Σ a[i·row + k·step]·b[k][…].
#define PRODUCT(n) \
  FN void product##n(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int depth) { \
    vecf sum[4][n]; \
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) { _Pragma("GCC unroll 4") for (int v = 0; v < n; v++) sum[i][v] = *(vecfu *)(c + i * pitch + v * VEC); } \
    for (int k = 0; k < depth; k++) { \
      vecf y[n]; \
      _Pragma("GCC unroll 4") for (int v = 0; v < n; v++) y[v] = *(const vecfu *)(b + (i64)k * width + v * VEC); \
      _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) { \
        vecf x = a[i * row + k * step] - (vecf){}; \
        _Pragma("GCC unroll 4") for (int v = 0; v < n; v++) sum[i][v] += x * y[v]; \
      } \
    } \
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) { _Pragma("GCC unroll 4") for (int v = 0; v < n; v++) *(vecfu *)(c + i * pitch + v * VEC) = sum[i][v]; } \
  }
PRODUCT(1) PRODUCT(2) PRODUCT(3) PRODUCT(4)

// multiply adds a·b to c, of rows (a multiple of 4) and cols (a multiple of VEC).
static void multiply(f32 *c, int pitch, const f32 *a, int row, int step, const f32 *b, int width, int rows, int cols, int depth) {
  int j = 0;
  for (; j + 4 * VEC <= cols; j += 4 * VEC)
    for (int i = 0; i < rows; i += 4) product4(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth);
  for (int i = 0; i < rows && j < cols; i += 4)
    switch ((cols - j) / VEC) {
    case 1: product1(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth); break;
    case 2: product2(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth); break;
    default: product3(c + i * pitch + j, pitch, a + i * row, row, step, b + j, width, depth);
    }
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

// turned copies a block of KEYS rows as columns.
static void turned(f32 *to, const f32 *from) {
  for (int x = 0; x < DIM; x++)
    for (int j = 0; j < KEYS; j++) to[x * KEYS + j] = from[j * ROW + x];
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
