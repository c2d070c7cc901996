// The product of matrices of bf16 by an instruction that adds products of pairs of k's to f32 sums. args[0] is A, whose
// matrices lie MATRIX_A elements apart. It has rows, LINE elements apart, or with PACKED_A panels of BLOCK rows,
// [PADDED / 2][BLOCK][2]. args[1] are the panels of B, [PADDED / 2][PANEL][2]. Panels of either begin PANEL_PITCH k's
// apart. args[2] is C, or where SPLITS > 1 the partial sums, [SPLITS][PART].
//
// A group computes ROWS × COLUMNS of a matrix for SPLIT of the k's. It takes BLOCK of the rows at a time, and STEPS of
// the k's. Steps are multiples of GRAIN, and each sum adds them in order.
//
// The instructions are assembly: compilers spend 0.1 s of each kernel on a header of intrinsics.

#define STEP_ROUND(k) (((k) + GRAIN - 1) / GRAIN * GRAIN)

#if UNIT_AMX
// Registers 0 to 3 hold 32 × 32 sums, 4 and 5 rows of A, 6 and 7 pairs of B.
#define A_ROW PITCH
#define TILE 32      // rows of the sums that are computed at once
#define ROW_GRAIN 16 // the rows of a register

// mm_tile adds the products of 16·down rows and 16·right columns to the sums at c, or begins them.
MM_INLINE void mm_tile(const u16 *a, const u16 *b, u64 steps, f32 *c, u64 ld, int begin, const int down, const int right) {
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
	for (u64 k = 0; k < steps; k += 32) {
		MM_READ(6, b + k * PANEL, 4 * PANEL);
		MM_READ(4, a + k, 2 * PITCH);
		MM_DOT(0, 4, 6);
		if (right > 1) {
			MM_READ(7, b + k * PANEL + 32, 4 * PANEL);
			MM_DOT(1, 4, 7);
		}
		if (down > 1) {
			MM_READ(5, a + 16 * PITCH + k, 2 * PITCH);
			MM_DOT(2, 5, 6);
			if (right > 1) MM_DOT(3, 5, 7);
		}
	}
	MM_WRITE(0, c, 4 * ld);
	if (right > 1) MM_WRITE(1, c + 16, 4 * ld);
	if (down > 1) MM_WRITE(2, below, 4 * ld);
	if (down > 1 && right > 1) MM_WRITE(3, below + 16, 4 * ld);
}

typedef struct { const u16 *a; u64 row; const gp_arg *args; u64 at; int stores; } mm_ahead; // not used
#define AHEAD 1

// mm_any adds to the sums of a tile of any place.
MM_INLINE void mm_any(const u16 *a, const u16 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_ahead *ahead, u64 rows, u64 columns) {
	if (rows > 16 && columns > 16) mm_tile(a, b, steps, c, ld, begin, 2, 2);
	else if (rows > 16) mm_tile(a, b, steps, c, ld, begin, 2, 1);
	else if (columns > 16) mm_tile(a, b, steps, c, ld, begin, 1, 2);
	else mm_tile(a, b, steps, c, ld, begin, 1, 1);
}

#else
#define ROW_GRAIN 1
#if UNIT_AVX512
#define TILE 12
#define LANES 16
#else
#define TILE 8
#define LANES 4
#endif
typedef f32 mm_sums __attribute__((vector_size(4 * LANES)));
typedef f32 mm_sums_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef u32 mm_pairs __attribute__((vector_size(4 * LANES)));
typedef u32 mm_pairs_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef u32 mm_pair __attribute__((aligned(2), may_alias));

MM_INLINE void mm_configure(void) {}
MM_INLINE void mm_release(void) {}

MM_INLINE mm_sums mm_read(const f32 *c) { return *(const mm_sums_at *)c; }

// mm_dot adds the products of a pair of A with pairs of B.
MM_INLINE mm_sums mm_dot(mm_sums sum, mm_pairs a, mm_pairs b) {
#if UNIT_AVX512
	__asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
#else
	__asm__("bfdot %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(b), "w"(a));
#endif
	return sum;
}

// A_ROW and A_PAIR are the elements between rows and between pairs of k's: of a panel of A, or of a block's copy.
#if PACKED_A
#define A_ROW 2
#define A_PAIR (2 * BLOCK)
#else
#define A_ROW PITCH
#define A_PAIR 2
#endif
#define LINE_STEPS 32 // elements of a cache's line: the k's between two prefetches

// mm_ahead is what a tile fetches while it computes. A prefetch of any address is harmless.
typedef struct {
	const u16 *a;       // rows that the next tiles need: AHEAD of them, each as long as the steps
	u64 row;            // elements between them
	const gp_arg *args; // the kernel's
	u64 at;             // the tile's first element of C
	int stores;         // the tile's sums are complete at its end: fetch C and the epilogue's arrays
} mm_ahead;

#define TILES ((COLUMNS + PANEL - 1) / PANEL * ((BLOCK + TILE - 1) / TILE)) // of a block
#define AHEAD MIN(4, (BLOCK + TILES - 1) / TILES)
#define FETCHED ((TILE * LINE_STEPS + STEPS - 1) / STEPS) // rows that a tile fetches of each array every LINE_STEPS
#define FETCH(arg) \
	for (u64 q = 0; q < PANEL * sizeof(C_T); q += 64) \
		__builtin_prefetch((const char *)((const C_T *)(arg).at + ahead->at + (k / LINE_STEPS * FETCHED + f) * N) + q, 1, 2);
#ifndef EPILOGUE_ARRAYS
#define EPILOGUE_ARRAYS(FETCH)
#endif

// mm_pair_step adds the products of a pair of k's.
MM_INLINE void mm_pair_step(const u16 *a, const u16 *b, mm_sums acc[TILE][2], const int rows, const int vecs) {
	mm_pairs x[2];
	#pragma GCC unroll 2
	for (int v = 0; v < vecs; v++) x[v] = *(const mm_pairs_at *)(b + 2 * v * LANES);
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++) {
		mm_pairs y = *(const mm_pair *)(a + i * A_ROW) - (mm_pairs){0};
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) acc[i][v] = mm_dot(acc[i][v], y, x[v]);
	}
}

// mm_tile adds the products of rows × vecs vectors of columns to the sums at c, or begins them.
MM_INLINE void mm_tile(const u16 *a, const u16 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_ahead *ahead, const int rows, const int vecs) {
	mm_sums acc[TILE][2];
	if (begin) {
		#pragma GCC unroll 16
		for (int i = 0; i < rows; i++)
			#pragma GCC unroll 2
			for (int v = 0; v < vecs; v++) {
				acc[i][v] = (mm_sums){0};
				if (v * LANES % 16 == 0) __builtin_prefetch(c + i * ld + v * LANES, 1);
			}
	} else {
		#pragma GCC unroll 16
		for (int i = 0; i < rows; i++)
			#pragma GCC unroll 2
			for (int v = 0; v < vecs; v++) acc[i][v] = mm_read(c + i * ld + v * LANES);
	}
	u64 k = 0;
	for (; k + LINE_STEPS <= steps; k += LINE_STEPS) {
		for (u64 q = 0; q < AHEAD; q++) __builtin_prefetch(ahead->a + q * ahead->row + k, 0, 2);
#ifdef EPILOGUE
		if (ahead->stores && k / LINE_STEPS * FETCHED < (u64)rows) {
			const gp_arg *args = ahead->args;
			for (u64 f = 0; f < FETCHED; f++) {
				FETCH(MM_ARG(2))
				EPILOGUE_ARRAYS(FETCH)
			}
		}
#endif
		#pragma GCC unroll 1
		for (int q = 0; q < LINE_STEPS; q += 4) {
			mm_pair_step(a, b, acc, rows, vecs);
			mm_pair_step(a + A_PAIR, b + 2 * PANEL, acc, rows, vecs);
			a += 2 * A_PAIR, b += 4 * PANEL;
		}
	}
	for (; k < steps; k += 2, a += A_PAIR, b += 2 * PANEL) mm_pair_step(a, b, acc, rows, vecs);
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) *(mm_sums_at *)(c + i * ld + v * LANES) = acc[i][v];
}

#define MM_TILE(name, rows, vecs) \
	static __attribute__((noinline)) void name(const u16 *a, const u16 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_ahead *ahead) { \
		mm_tile(a, b, steps, c, ld, begin, ahead, rows, vecs); \
	}
#define NARROW (N % PANEL > 0 && N % PANEL <= LANES) // the last panel has one vector
#if M >= TILE
MM_TILE(mm_whole, TILE, 2)
#if NARROW
MM_TILE(mm_whole_narrow, TILE, 1)
#endif
#endif
#if M % TILE
MM_TILE(mm_rest, (M % TILE), 2)
#if NARROW
MM_TILE(mm_rest_narrow, (M % TILE), 1)
#endif
#endif

// mm_any adds to the sums of a tile of any place: rows are at least TILE, or what M leaves of it.
MM_INLINE void mm_any(const u16 *a, const u16 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_ahead *ahead, u64 rows, u64 columns) {
#if NARROW
	if (columns <= LANES) {
#if M >= TILE
		if (rows >= TILE) { mm_whole_narrow(a, b, steps, c, ld, begin, ahead); return; }
#endif
#if M % TILE
		mm_rest_narrow(a, b, steps, c, ld, begin, ahead);
#endif
		return;
	}
#endif
#if M >= TILE
	if (rows >= TILE) { mm_whole(a, b, steps, c, ld, begin, ahead); return; }
#endif
#if M % TILE
	mm_rest(a, b, steps, c, ld, begin, ahead);
#endif
}
#endif

// mm_copy copies rows of A, and adds zeros up to whole tiles and steps.
MM_INLINE void mm_copy(u16 *to, const u16 *from, u64 rows, u64 steps) {
	u64 r = 0, zeros = STEP_ROUND(steps) - steps;
	for (; r < rows; r++) {
		__builtin_memcpy(to + r * PITCH, from + r * LINE, 2 * steps);
		if (zeros) __builtin_memset(to + r * PITCH + steps, 0, 2 * zeros);
	}
	for (; r % ROW_GRAIN; r++) __builtin_memset(to + r * PITCH, 0, 2 * (steps + zeros));
}

