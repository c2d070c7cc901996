// The product: args[0] is A; args[1] is B, or its panels where PACK_B; args[2] is C, or where SPLITS > 1 the partial
// sums, [SPLITS][PART]. A group computes ROWS × COLUMNS of a matrix for SPLIT of the k's. At most
// BLOCK rows and STEPS of the k's are taken at a time. Each sum adds its k's in order, whatever these sizes are.

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

// The sums lie in C if they are what is stored, and if no vector of them crosses the end of a row. If N is a multiple
// of 1024, rows of C map to the same cache sets and evict each other. Sums that are loaded again for each block of k's
// then lie in an array of the block.
#if !defined(EPILOGUE) && N % 16 == 0 && (N % 1024 || SPLIT <= STEPS)
#define IN_PLACE 1
#else
#define IN_PLACE 0
#endif

// Where the k's are taken in one block, a tile's rows of A stay in the first level of the cache, and the epilogue
// follows when they are complete. Otherwise a panel of B stays there, and all rows of the block pass by.
#if SPLIT <= STEPS
#define ROWS_INSIDE 0
#undef BLOCK
#define BLOCK MR
#else
#define ROWS_INSIDE 1
#endif

// Operands and results rarely lie in a cache when a kernel begins. While a tile is computed, what comes next is
// fetched, a line every four steps: A's next rows where they lie along k, or A's next k's where the group packs them; B
// some steps ahead, in the first of the tiles that use a panel; and the tile's elements of C and of the arrays that the
// epilogue accesses, EPILOGUE_ARRAYS(FETCH). A prefetch of any address is harmless.
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

// mm_ahead returns where a tile fetches A, whose elements it computes with begin at a. Tiles are counted from the first
// of a block of rows and of steps, panels from that of a row of tiles.
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
MM_INLINE void mm_step(const f32 *a, const f32 *b, vecf acc[MR][2], const int rows, const int vecs) {
	vecf x[2];
	#pragma GCC unroll 2
	for (int v = 0; v < vecs; v++) x[v] = *(const vecfu *)(b + v * VL);
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++) {
		vecf y = a[(u64)i * A_ROW] - (vecf){0};
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) acc[i][v] = fma_vec(y, x[v], acc[i][v]);
	}
}

// mm_tile adds the products of rows × vecs vectors of columns to the sums at c, or begins them.
MM_INLINE void mm_tile(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold, const int rows, const int vecs) {
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
		#pragma GCC unroll 1 // compilers take half the time
		for (int q = 0; q < 4; q++) {
			__builtin_prefetch(ahead + q * A_LINE, 0, A_LEVEL);
			if (cold) {
				#pragma GCC unroll 4
				for (int s = 0; s < 4; s++)
					// Hardware's own fetching stops at the end of a page.
					#pragma GCC unroll 2
					for (int v = 0; v < vecs; v += LINE / 4 / VL) __builtin_prefetch(b + (B_AHEAD + s) * B_STEP + v * VL);
			}
#if !IN_PLACE
			if (k < fetched) {
				FETCH(MM_ARG(2))
				EPILOGUE_ARRAYS(FETCH)
			}
#endif
			#pragma GCC unroll 4
			for (int s = 0; s < 4; s++) mm_step(a + s * A_STEP, b + s * B_STEP, acc, rows, vecs);
			a += 4 * A_STEP, b += 4 * B_STEP;
		}
		ahead += A_NEXT;
	}
	for (; k < steps; k++, a += A_STEP, b += B_STEP) mm_step(a, b, acc, rows, vecs);
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) *(vecfu *)(c + i * ld + v * VL) = acc[i][v];
}

#define MM_TILE(name, rows, vecs) \
	static __attribute__((noinline)) void name(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold) { \
		mm_tile(a, b, steps, c, ld, begin, place, cold, rows, vecs); \
	}
