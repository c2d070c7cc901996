// The product of f32 by AMX, whose instruction adds products of bf16 to f32 sums. Every f32 is the sum of three bf16,
// its terms: the value rounded to 8 bits, the rest rounded to 8 bits, and the rest of that. Of the nine products of
// terms the six largest are added. What is left out is 2^-24 of a product, as much as f32 rounds off. The sums of an
// operand that is not finite are NaN.
//
// Where PACK, the pass packs B: args[0] is B, args[1] the panels. Otherwise it is the product: args[0] is A, args[1]
// are the panels of B, or where GROUP_B B itself, and args[2] is C, or where SPLITS > 1 the partial sums,
// [SPLITS][PART]. A group computes ROWS × COLUMNS of a matrix for SPLIT of the k's. It takes BLOCK of the rows and
// STEPS of the k's at a time, packs them, and multiplies them with every panel of B.
//
// GROUP_OFFSETS are the offsets of a grouped product. Where GROUPED_SUMS, a matrix of C is the sum over the k's of its
// group. Otherwise a group of the kernel takes up to ROWS rows of A of one group, and that group's matrix of B.
//
// A tile has 16 rows of 16 words. A word holds one term of two k's that are 16 apart. A row of a tile of A is a row of
// A; the rows of a tile of B are k's, a column a column of B. A cell is the tiles of 32 rows, or columns, and 32 k's:
// two for each term, [2][3][256] words. The cells of a panel lie in the order of k, [panel][PADDED / 32]. Behind the
// last row, column or k they have zeros.

#define CELL (2 * 3 * 256) // words
#define CELL_LINES 32
#define CELL_STEPS 32

typedef i32 mm_lanes __attribute__((vector_size(64)));
typedef u32 mm_words16 __attribute__((vector_size(64)));
typedef f32 mm_vec __attribute__((vector_size(64)));
typedef f32 mm_vec_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef u32 mm_words_at __attribute__((vector_size(64), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define MM_MIX(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define MM_MIX(x, y, ...) __builtin_shuffle(x, y, (mm_lanes){__VA_ARGS__})
#endif

// MM_SWAP exchanges, between vectors whose numbers differ in bit d, the lanes whose numbers differ in it.
#define MM_SWAP(d, low, high) \
	_Pragma("GCC unroll 16") \
	for (int i = 0; i < 16; i++) { \
		if (i & d) continue; \
		mm_vec x = v[i], y = v[i + d]; \
		v[i] = MM_MIX(x, y, low), v[i + d] = MM_MIX(x, y, high); \
	}

// mm_transpose makes the columns of 16 vectors rows.
MM_INLINE void mm_transpose(mm_vec v[16]) {
#define LIST(...) __VA_ARGS__
	MM_SWAP(8, LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23), LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
	MM_SWAP(4, LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27), LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
	MM_SWAP(2, LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29), LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
	MM_SWAP(1, LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30), LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef LIST
}

// mm_term returns the nearest value of 8 bits, and subtracts it.
MM_INLINE mm_words16 mm_term(mm_vec *rest) {
	mm_words16 term = ((mm_words16)*rest + 0x8000u) & 0xffff0000u;
	*rest -= (mm_vec)term;
	return term;
}

// mm_split stores a row of the tile of each term.
MM_INLINE void mm_split(u32 *to, mm_vec x, mm_vec y) {
	#pragma GCC unroll 3
	for (int t = 0; t < 3; t++) {
		mm_words16 low = mm_term(&x), high = mm_term(&y);
		*(mm_words_at *)(to + 256 * t) = low >> 16 | high;
	}
}

MM_INLINE mm_vec mm_read16(const f32 *p) { return *(const mm_vec_at *)p; }

// mm_tile stores a tile of each term from two squares, of 16 rows that lie ld apart.
MM_INLINE void mm_tile(u32 *to, const f32 *x, const f32 *y, u64 ld, const int transposed) {
	if (!transposed) {
		#pragma GCC unroll 4
		for (int r = 0; r < 16; r++) mm_split(to + 16 * r, mm_read16(x + r * ld), mm_read16(y + r * ld));
		return;
	}
	mm_vec u[16], v[16];
	#pragma GCC unroll 16
	for (int r = 0; r < 16; r++) u[r] = mm_read16(x + r * ld);
	mm_transpose(u);
	#pragma GCC unroll 16
	for (int r = 0; r < 16; r++) v[r] = mm_read16(y + r * ld);
	mm_transpose(v);
	#pragma GCC unroll 16
	for (int r = 0; r < 16; r++) mm_split(to + 16 * r, u[r], v[r]);
}

// mm_cells stores the cells of at most CELL_LINES lines. The element of a line and a step lies at
// from[line * ld + step] where along, and at from[step * ld + line] otherwise. left are cells of A, others are B's.
MM_INLINE void mm_cells(u32 *to, const f32 *from, u64 ld, const int along, const int left, u64 lines, u64 steps) {
	const u64 line = along ? ld : 1, step = along ? 1 : ld;
	for (u64 k = 0; k < steps; k += CELL_STEPS, to += CELL, from += CELL_STEPS * step) {
		for (u64 half = 0; half < 2; half++) {
			const f32 *x = from + half * 16 * line;
			u32 *tile = to + half * 3 * 256;
			if (lines >= half * 16 + 16 && steps - k >= CELL_STEPS) {
				mm_tile(tile, x, x + 16 * step, ld, left != along);
				continue;
			}
			if (lines <= half * 16) {
				__builtin_memset(tile, 0, 3 * 256 * sizeof(u32));
				continue;
			}
			f32 part[2][256] __attribute__((aligned(64))) = {0};
			for (u64 i = 0; i < MIN(16, lines - half * 16); i++)
				for (u64 s = 0; s < MIN(CELL_STEPS, steps - k); s++)
					part[s / 16][left ? i * 16 + s % 16 : s % 16 * 16 + i] = x[i * line + s * step];
			mm_tile(tile, part[0], part[1], 16, 0);
		}
	}
}

#if PACK
KERNEL {
	const f32 *from = MM_ARG(0).at;
	u32 *to = MM_ARG(1).at;
	for (u32 group = first; group < last; group++) {
		u64 columns = (N + PACK_COLUMNS - 1) / PACK_COLUMNS, step_blocks = (K + PACK_STEPS - 1) / PACK_STEPS;
		u64 j0 = group % columns * PACK_COLUMNS, j1 = MIN(j0 + PACK_COLUMNS, N);
		u64 k0 = group / columns % step_blocks * PACK_STEPS, k1 = MIN(k0 + PACK_STEPS, K), n = group / columns / step_blocks;
		for (u64 j = j0; j < j1; j += CELL_LINES)
			mm_cells(to + n * PANELS + (j * PADDED + k0 * CELL_LINES) / (CELL_LINES * CELL_STEPS) * CELL,
				from + n * STRIDE_B + (TRANS_B ? j * K + k0 : k0 * N + j), TRANS_B ? K : N, TRANS_B, 0, MIN(CELL_LINES, N - j), k1 - k0);
	}
}

#else
// Registers 0 to 3 hold 32 × 32 sums, 4 and 5 a term of two tiles of A, 6 and 7 of B.
#define MM_A(term) do { MM_READ(4, a + 256 * term, 64); if (down > 1) MM_READ(5, a + 768 + 256 * term, 64); } while (0)
#define MM_B(term) do { MM_READ(6, b + 256 * term, 64); if (right > 1) MM_READ(7, b + 768 + 256 * term, 64); } while (0)
#define MM_DOTS do { \
		MM_DOT(0, 4, 6); \
		if (right > 1) MM_DOT(1, 4, 7); \
		if (down > 1) MM_DOT(2, 5, 6); \
		if (down > 1 && right > 1) MM_DOT(3, 5, 7); \
	} while (0)

// While sums are computed, what comes next is fetched: FETCH_ROWS lines of the next block of A, and of B where a group
// packs it, of FETCH_BYTES every cell, and the elements of C and of the arrays that the epilogue accesses. A prefetch
// of any address is harmless.
#define CALLS (BLOCK / CELL_LINES * ((COLUMNS + CELL_LINES - 1) / CELL_LINES)) // of mm_sums a block
#define CELLS (STEPS / CELL_STEPS)                                             // of a line of a block
#define UP(x, y) (((x) + (y) - 1) / (y))
#define A_LINES (TRANS_A ? STEPS : BLOCK)
#define A_LINE ((TRANS_A ? M : K) * sizeof(f32))
#define A_FETCH_ROWS UP(A_LINES, CALLS)
#define A_FETCH_BYTES UP((TRANS_A ? BLOCK : STEPS) * sizeof(f32), CELLS)
#define B_FETCH_ROWS UP(STEPS, CALLS)
#define B_FETCH_BYTES UP(COLUMNS * sizeof(f32), CELLS)
#ifndef EPILOGUE_ARRAYS
#define EPILOGUE_ARRAYS(FETCH)
#endif
#define FETCH(arg) __builtin_prefetch((const char *)(arg).at + at * 4, 1, 2), __builtin_prefetch((const char *)(arg).at + at * 4 + 64, 1, 2);

// mm_place is what is fetched.
typedef struct {
	const char *a, *b;
	const gp_arg *args; // the kernel's
	u64 at;             // the first element of C
	int c;              // whether C is fetched
} mm_place;

MM_INLINE void mm_fetch(const char *from, u64 rows, u64 line, u64 bytes) {
	#pragma GCC unroll 4
	for (u64 r = 0; r < rows; r++)
		#pragma GCC unroll 8
		for (u64 x = 0; x < bytes; x += 64) __builtin_prefetch(from + r * line + x, 0, 2);
}

// mm_sums adds the products of 16·down rows and 16·right columns to the sums at c, or begins them.
MM_INLINE void mm_sums(const u32 *a, const u32 *b, u64 cells, f32 *c, u64 ld, int begin, const mm_place *place, const int down, const int right) {
	f32 *below = c + 16 * ld;
	if (begin) {
		MM_ZERO(0);
		if (right > 1) MM_ZERO(1);
		if (down > 1) MM_ZERO(2);
		if (down > 1 && right > 1) MM_ZERO(3);
	} else {
		MM_READ(0, c, 4 * ld);
		if (right > 1) MM_READ(1, c + 16, 4 * ld);
		if (down > 1) MM_READ(2, below, 4 * ld);
		if (down > 1 && right > 1) MM_READ(3, below + 16, 4 * ld);
	}
	const gp_arg *args = place->args;
	u64 row = 0, most = place->c ? 16 * down : 0;
	for (u64 q = 0; q < cells; q++, a += CELL, b += CELL) {
		MM_A(2); MM_B(0); MM_DOTS;
		mm_fetch(place->a + q * A_FETCH_BYTES, A_FETCH_ROWS, A_LINE, A_FETCH_BYTES);
		MM_A(1); MM_DOTS;
#if GROUP_B && !TRANS_B
		mm_fetch(place->b + q * B_FETCH_BYTES, B_FETCH_ROWS, N * sizeof(f32), B_FETCH_BYTES);
#endif
		MM_B(1); MM_DOTS;
		for (u64 end = MIN(most, (q + 1) * UP(CELL_LINES, CELLS)); row < end; row++) {
			u64 at = place->at + row * N;
			FETCH(MM_ARG(2))
			EPILOGUE_ARRAYS(FETCH)
		}
		MM_A(0); MM_DOTS;
		MM_B(2); MM_DOTS;
		MM_B(0); MM_DOTS;
	}
	MM_WRITE(0, c, 4 * ld);
	if (right > 1) MM_WRITE(1, c + 16, 4 * ld);
	if (down > 1) MM_WRITE(2, below, 4 * ld);
	if (down > 1 && right > 1) MM_WRITE(3, below + 16, 4 * ld);
}

// mm_any adds to the sums of any place.
MM_INLINE void mm_any(const u32 *a, const u32 *b, u64 cells, f32 *c, u64 ld, int begin, const mm_place *place, u64 rows, u64 columns) {
	if (rows > 16 && columns > 16) mm_sums(a, b, cells, c, ld, begin, place, 2, 2);
	else if (rows > 16) mm_sums(a, b, cells, c, ld, begin, place, 2, 1);
	else if (columns > 16) mm_sums(a, b, cells, c, ld, begin, place, 1, 2);
	else mm_sums(a, b, cells, c, ld, begin, place, 1, 1);
}

// Where the product is SYMMETRIC, only cells on the diagonal and above it are computed. The others mirror them.

// The sums of rows lie in C where they are what is stored, and tiles are whole. Otherwise they lie in a block, of one
// panel of columns where that has all k's.
#ifndef GROUPED_SUMS
#define GROUPED_SUMS 0
#endif
#define ONCE (SPLIT <= STEPS && !GROUPED_SUMS)
#if defined(EPILOGUE) || N % 16
#define IN_PLACE(rows) 0
#elif GROUPED_ROWS
#define IN_PLACE(rows) ((rows) % 16 == 0)
#else
#define IN_PLACE(rows) (M % 16 == 0)
#endif
#define BLOCK_LINE (ONCE ? CELL_LINES : COLUMNS)

// mm_next returns the block of A that follows the one at from: the next k's, or those that the next rows begin with.
MM_INLINE const char *mm_next(const f32 *from, u64 k, int last) {
	const u64 row = TRANS_A ? 1 : K, step = TRANS_A ? M : 1;
	return (const char *)(last ? from + BLOCK * row - k * step : from + STEPS * step);
}

#if SYMMETRIC
// mm_mirror stores the transpose of 16 × 16 sums.
MM_INLINE void mm_mirror(f32 *to, const f32 *from, u64 ld_to, u64 ld) {
	mm_vec v[16];
	#pragma GCC unroll 16
	for (int r = 0; r < 16; r++) v[r] = mm_read16(from + r * ld);
	mm_transpose(v);
	#pragma GCC unroll 16
	for (int r = 0; r < 16; r++) *(mm_vec_at *)(to + r * ld_to) = v[r];
}

// mm_mirror_cell stores the transpose of a cell that has so many rows and columns.
MM_INLINE void mm_mirror_cell(f32 *to, const f32 *from, u64 ld_to, u64 ld, u64 rows, u64 columns) {
	for (u64 r = 0; r < MIN(rows, CELL_LINES); r += 16)
		for (u64 q = 0; q < MIN(columns, CELL_LINES); q += 16) mm_mirror(to + q * ld_to + r, from + r * ld + q, ld_to, ld);
}
#endif

KERNEL {
	const f32 *a = MM_ARG(0).at;
	C_T *c = MM_ARG(2).at;
	u32 cells[BLOCK / CELL_LINES * CELLS * CELL] __attribute__((aligned(64)));
#if GROUP_B
	u32 y[CELLS * CELL] __attribute__((aligned(64)));
#endif
	f32 block[BLOCK * BLOCK_LINE] __attribute__((aligned(64)));
	mm_configure();
	for (u32 group = first; group < last; group++) {
#if GROUPED_ROWS
		u64 row_blocks = GROUPED / ROWS + GROUPS, j0 = group / row_blocks * COLUMNS, n = 0, split = 0, k0 = 0, k1 = K, i0, i1;
		u64 matrix = mm_rows(GROUP_OFFSETS, group % row_blocks, &i0, &i1);
#else
		u64 at = group, row_blocks = (M + ROWS - 1) / ROWS, column_blocks = (N + COLUMNS - 1) / COLUMNS;
		u64 i0 = at % row_blocks * ROWS, i1 = MIN(i0 + ROWS, M);
		at /= row_blocks;
		u64 j0 = at % column_blocks * COLUMNS;
		at /= column_blocks;
		u64 n = at % BATCH, split = at / BATCH, matrix = n;
#if GROUPED_SUMS
		const u32 *offsets = GROUP_OFFSETS;
		u64 k1 = MIN(offsets[n + 1], K), k0 = MIN(offsets[n], k1);
#else
		u64 k0 = split * SPLIT, k1 = MIN(k0 + SPLIT, K);
#endif
#endif
		u64 j1 = MIN(j0 + COLUMNS, N);
#if GROUP_B
		const f32 *b = (const f32 *)MM_ARG(1).at + matrix * STRIDE_B;
#else
		const u32 *panels = (const u32 *)MM_ARG(1).at + (STRIDE_B ? matrix * PANELS : 0);
#endif
		for (u64 i = i0; i < i1; i += BLOCK) {
			const u64 rows = MIN(BLOCK, i1 - i), place = split * PART + (n * M + i) * N;
			const int in_place = IN_PLACE(rows);
			const u64 ld = in_place ? N : BLOCK_LINE;
			f32 *sums = in_place ? (f32 *)c + place + j0 : block;
			for (u64 r = 0; GROUPED_SUMS && k0 == k1 && r < rows; r++) __builtin_memset(sums + r * ld, 0, (j1 - j0) * sizeof(f32));
			for (u64 k = k0; k < k1; k += STEPS) {
				u64 steps = MIN(STEPS, k1 - k), count = UP(steps, CELL_STEPS), call = 0;
				int begin = k == k0, last = k + STEPS >= k1; // of the blocks of k's
				const f32 *from = a + n * STRIDE_A + (TRANS_A ? k * M + i : i * K + k);
				const char *next = mm_next(from, k - k0, last);
				for (u64 r = 0; r < rows; r += CELL_LINES)
					mm_cells(cells + r / CELL_LINES * count * CELL, from + r * (TRANS_A ? 1 : K), TRANS_A ? M : K, !TRANS_A, 1, MIN(CELL_LINES, rows - r), steps);
				for (u64 j = SYMMETRIC ? MAX(i, j0) : j0; j < j1; j += CELL_LINES) {
					const u64 above = SYMMETRIC ? MIN(j - i, rows) : 0; // rows of which the panel has no cell on the diagonal
					const u64 end = SYMMETRIC ? MIN(above + CELL_LINES, rows) : rows;
#if GROUP_B
					mm_cells(y, b + (TRANS_B ? j * K + k : k * N + j), TRANS_B ? K : N, TRANS_B, 0, MIN(CELL_LINES, N - j), steps);
#else
					const u32 *y = panels + (j / CELL_LINES * (PADDED / CELL_STEPS) + k / CELL_STEPS) * CELL;
#endif
					for (u64 r = 0; r < end; r += CELL_LINES, call++) {
						mm_place fetched = {.args = args, .at = place + r * N + j, .c = in_place ? begin : last};
						fetched.a = next + MIN(call * A_FETCH_ROWS, A_LINES) * A_LINE;
#if GROUP_B && !TRANS_B
						fetched.b = (const char *)(b + (k + STEPS + call * B_FETCH_ROWS) * N + j0);
#endif
						mm_any(cells + r / CELL_LINES * count * CELL, y, count, sums + r * ld + (!in_place && ONCE ? 0 : j - j0), ld, begin, &fetched, rows - r, N - j);
					}
					for (u64 r = 0; ONCE && !in_place && r < end; r++)
						mm_store(args, c + split * PART, block + r * CELL_LINES, MIN(CELL_LINES, j1 - j), n, i + r, j);
#if SYMMETRIC
					for (u64 r = 0; last && r < above; r += CELL_LINES) {
						if (in_place) {
							f32 *whole = (f32 *)c + split * PART + n * M * N;
							mm_mirror_cell(whole + j * N + i + r, whole + (i + r) * N + j, N, N, above - r, N - j);
							continue;
						}
						f32 mirror[CELL_LINES * CELL_LINES] __attribute__((aligned(64)));
						mm_mirror_cell(mirror, block + r * CELL_LINES, CELL_LINES, CELL_LINES, above - r, N - j);
						for (u64 q = 0; q < MIN(CELL_LINES, N - j); q++)
							mm_store(args, c, mirror + q * CELL_LINES, MIN(CELL_LINES, above - r), n, j + q, i + r);
					}
#endif
				}
			}
			for (u64 r = 0; !ONCE && !in_place && r < rows; r++)
				mm_store(args, c + split * PART, block + r * COLUMNS, j1 - j0, n, i + r, j0);
		}
	}
	mm_release();
}
#endif
