// The product: args[0] is A; args[1] is B, or its panels where PACK_B; args[2] is C, or where SPLITS > 1 the partial
// sums, [SPLITS][PART]. A group computes ROWS × COLUMNS of a matrix for SPLIT of the k's. It takes BLOCK of the
// rows at a time, and STEPS of the k's. Each sum adds its k's in order, whatever these sizes are.

#if PACK_B
#define B_STEP NR
#else
#define B_STEP N
#endif
#if PACK_A
#define A_ROW 1
#define A_STEP MR
#elif TRANS_A
#define A_ROW 1
#define A_STEP M
#else
#define A_ROW K
#define A_STEP 1
#endif

// The sums lie in C where they are what is stored, and no vector of them crosses the end of a row.
#if !defined(EPILOGUE) && N % 16 == 0
#define IN_PLACE 1
#else
#define IN_PLACE 0
#endif

// Where the k's are taken in one block, a tile's rows of A stay in the first level of the cache, and the epilogue follows
// when they are complete. Otherwise a panel of B stays there, and all rows of the block pass by.
#if SPLIT <= STEPS
#define ROWS_INSIDE 0
#undef BLOCK
#define BLOCK MR
#else
#define ROWS_INSIDE 1
#endif

// Operands and results rarely lie in a cache when a kernel begins. While a tile is computed, what comes next is fetched, a
// line every four steps: A's next rows where they lie along k, or A's next k's where the group packs them; B some steps
// ahead, in the first of the tiles that use a panel; and the tile's elements of C and of the arrays that the epilogue
// accesses, EPILOGUE_ARRAYS(FETCH). A prefetch of any address is harmless.
#define B_AHEAD 32       // steps
#define A_AHEAD_PANELS 4 // panels that fetch a part of A's next rows each
#define LINE 64          // bytes
#if TRANS_A
#define A_LEVEL 2 // of the cache: a block of k's does not fit the first
#define A_LINE LINE
#define A_NEXT (M * sizeof(A_T))
#else
#define A_LEVEL 3
#define A_LINE (K * sizeof(A_T))
#define A_NEXT LINE
#endif
#define FETCH(arg) __builtin_prefetch((const char *)(arg).at + (at + (k / 8 + q / 2) * N + q % 2 * 16) * 4, 1, 2);
#ifndef EPILOGUE_ARRAYS
#define EPILOGUE_ARRAYS(FETCH)
#endif

// mm_place is what a tile fetches ahead.
typedef struct {
	const char *a;      // four lines that are A_LINE bytes apart every 16 steps, then A_NEXT bytes further
	const gp_arg *args; // the kernel's
	u64 at;             // the tile's first element of C
} mm_place;

// mm_ahead returns where a tile fetches A, whose elements it computes with begin at a. Tiles are counted from the first of
// a block of rows and of steps, panels from that of a row of tiles.
MM_INLINE const char *mm_ahead(const A_T *a, const A_T *block, u64 tile, u64 panel, u64 rows, u64 steps) {
#if TRANS_A
	const u64 tiles = 16; // which fetch four lines of each of the steps
	u64 column = tile / tiles * 4 * LINE;
	if (ROWS_INSIDE && column < rows * sizeof(A_T)) return (const char *)(block + (STEPS + tile % tiles * (steps / 16)) * M) + column;
#else
	if (panel < A_AHEAD_PANELS) return (const char *)(a + (ROWS_INSIDE ? STEPS : (u64)MR * K) + panel * 4 * K);
#endif
	return (const char *)a;
}

// mm_step adds the products of one k.
MM_INLINE void mm_step(const f32 *a, const f32 *b, vecf acc[MR][2], const int cold, const int rows, const int vecs) {
	vecf x[2];
	#pragma GCC unroll 2
	for (int v = 0; v < vecs; v++) {
		x[v] = *(const vecfu *)(b + v * VL);
		if (cold && v * VL % 16 == 0) __builtin_prefetch(b + B_AHEAD * B_STEP + v * VL); // hardware stops at the end of a page
	}
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++) {
		vecf y = a[(u64)i * A_ROW] - (vecf){0};
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) acc[i][v] += y * x[v];
	}
}

// mm_tile adds the products of rows × vecs vectors of columns to the sums at c, or begins them.
MM_INLINE void mm_tile(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, const int cold, const int rows, const int vecs) {
	const char *ahead = place->a;
	vecf acc[MR][2];
	if (begin) {
		#pragma GCC unroll 16
		for (int i = 0; i < rows; i++)
			#pragma GCC unroll 2
			for (int v = 0; v < vecs; v++) {
				acc[i][v] = (vecf){0};
				if (IN_PLACE && v * VL % 16 == 0) __builtin_prefetch(c + i * ld + v * VL, 1);
			}
	} else {
		#pragma GCC unroll 16
		for (int i = 0; i < rows; i++)
			#pragma GCC unroll 2
			for (int v = 0; v < vecs; v++) acc[i][v] = mm_load_f32(c + i * ld + v * VL);
	}
#if !IN_PLACE
	const gp_arg *args = place->args;
	const u64 at = place->at, fetched = begin ? 8 * (u64)rows : 0;
#endif
	u64 k = 0;
	for (; k + 16 <= steps; k += 16) {
		#pragma GCC unroll 4
		for (int q = 0; q < 4; q++) {
			__builtin_prefetch(ahead + q * A_LINE, 0, A_LEVEL);
#if !IN_PLACE
			if (k < fetched) {
				FETCH(args[2])
				EPILOGUE_ARRAYS(FETCH)
			}
#endif
			#pragma GCC unroll 4
			for (int s = 0; s < 4; s++) mm_step(a + (4 * q + s) * A_STEP, b + (4 * q + s) * B_STEP, acc, cold, rows, vecs);
		}
		a += 16 * A_STEP, b += 16 * B_STEP, ahead += A_NEXT;
	}
	for (; k < steps; k++, a += A_STEP, b += B_STEP) mm_step(a, b, acc, cold, rows, vecs);
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) *(vecfu *)(c + i * ld + v * VL) = acc[i][v];
}

#define MM_TILE(name, cold, rows, vecs) \
	static __attribute__((noinline)) void name(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place) { \
		mm_tile(a, b, steps, c, ld, begin, place, cold, rows, vecs); \
	}
#define NARROW (N % NR > 0 && N % NR <= VL) // the last panel has one vector
#if M >= MR
MM_TILE(mm_whole, 0, MR, 2)
MM_TILE(mm_whole_cold, 1, MR, 2)
#if NARROW
MM_TILE(mm_whole_narrow, 0, MR, 1)
#endif
#endif
#if M % MR
MM_TILE(mm_rest, M < MR, (M % MR), 2)
#if NARROW
MM_TILE(mm_rest_narrow, M < MR, (M % MR), 1)
#endif
#endif

// mm_any adds to the sums of a tile of any place: rows is MR, or what M leaves of it.
MM_INLINE void mm_any(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold, u64 rows, u64 columns) {
#if NARROW
	if (columns <= VL) {
#if M >= MR
		if (rows == MR) { mm_whole_narrow(a, b, steps, c, ld, begin, place); return; }
#endif
#if M % MR
		mm_rest_narrow(a, b, steps, c, ld, begin, place);
#endif
		return;
	}
#endif
#if M >= MR
	if (rows == MR) {
		if (cold) mm_whole_cold(a, b, steps, c, ld, begin, place);
		else mm_whole(a, b, steps, c, ld, begin, place);
		return;
	}
#endif
#if M % MR
	mm_rest(a, b, steps, c, ld, begin, place);
#endif
}

#if PACK_A
// mm_pack_block packs the rows of a block, a panel of MR rows after the other.
MM_INLINE void mm_pack_block(f32 *to, const A_T *lines, u64 rows, u64 steps) {
#if TRANS_A
	u64 whole = rows / MR * MR;
	for (u64 k = 0; k < steps; k++) { // in the order in which A lies in memory
		for (u64 r = 0; r < whole; r += MR) {
			f32 *panel = to + r * STEPS + k * MR;
			const A_T *from = lines + k * M + r;
			for (u64 i = 0; i < MR / 4 * 4; i += 4) {
				vec4 four = P_LOAD4(from + i);
				__builtin_memcpy(panel + i, &four, sizeof four);
			}
			for (u64 i = MR / 4 * 4; i < MR; i++) panel[i] = P_WIDEN(from[i]);
		}
	}
	if (whole < rows) mm_pack(to + whole * STEPS, MR, lines + whole, M, 0, rows - whole, steps);
#else
	for (u64 r = 0; r < rows; r += MR) mm_pack(to + r * STEPS, MR, lines + r * K, K, 1, MIN(MR, rows - r), steps);
#endif
}
#endif

KERNEL {
	const A_T *a = args[0].at;
	const f32 *b = args[1].at;
	C_T *c = args[2].at;
#if PACK_A
	f32 panels[(BLOCK + MR - 1) / MR * MR * STEPS] __attribute__((aligned(64)));
#endif
#if !IN_PLACE
	f32 block[BLOCK * COLUMNS] __attribute__((aligned(64)));
#endif
	for (u32 group = first; group < last; group++) {
		u64 at = group, row_blocks = (M + ROWS - 1) / ROWS, column_blocks = (N + COLUMNS - 1) / COLUMNS;
		u64 i0 = at % row_blocks * ROWS, i1 = MIN(i0 + ROWS, M);
		at /= row_blocks;
		u64 j0 = at % column_blocks * COLUMNS, j1 = MIN(j0 + COLUMNS, N);
		at /= column_blocks;
		u64 n = at % BATCH, split = at / BATCH, k1 = MIN((split + 1) * SPLIT, K);
		for (u64 i = i0; i < i1; i += BLOCK) {
			u64 rows = MIN(BLOCK, i1 - i);
#if IN_PLACE
			f32 *sums = c + split * PART + (n * M + i) * N + j0;
			const u64 ld = N;
#else
			f32 *sums = block;
			const u64 ld = COLUMNS;
#endif
			for (u64 k = split * SPLIT; k < k1; k += STEPS) {
				u64 steps = MIN(STEPS, k1 - k);
				const A_T *lines = a + n * STRIDE_A + (TRANS_A ? k * M + i : i * K + k);
#if PACK_A
				mm_pack_block(panels, lines, rows, steps);
#endif
				u64 tile = 0;
				for (u64 j = j0; j < j1; j += NR) {
#if PACK_B
					const f32 *y = b + (STRIDE_B ? n * PANELS : 0) + j * K + k * NR;
#else
					const f32 *y = b + n * STRIDE_B + k * N + j;
#endif
					for (u64 r = 0; r < rows; r += MR) {
						const A_T *from = lines + r * (TRANS_A ? 1 : K);
#if PACK_A
						const f32 *x = panels + r * STEPS;
#else
						const f32 *x = from;
#endif
						mm_place place = {mm_ahead(from, lines, tile++, (j - j0) / NR, rows, steps), args, split * PART + (n * M + i + r) * N + j};
						mm_any(x, y, steps, sums + r * ld + (j - j0), ld, k == split * SPLIT, &place, ROWS_INSIDE ? r == 0 : i == i0, MIN(MR, rows - r), N - j);
					}
				}
			}
#if !IN_PLACE
			for (u64 r = 0; r < rows; r++) mm_store(args, c + split * PART, block + r * COLUMNS, j1 - j0, n, i + r, j0);
#endif
		}
	}
}
