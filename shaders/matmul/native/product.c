// The product: args[0] is A; args[1] is B, or its panels where PACK_B; args[2] is C, or where SPLITS > 1 the partial
// sums, [SPLITS][PART]. A group computes ROWS × COLUMNS of a matrix for SPLIT of the k's. It takes BLOCK of the
// rows at a time, and STEPS of the k's. Each sum adds its k's in order, whatever these sizes are.

#if PACK_B
#define B_STEP NR
#define AHEAD 32 // steps
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

// mm_tile adds the products of rows × vecs vectors of columns to the sums at c, or begins them.
MM_INLINE void mm_tile(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const int rows, const int vecs) {
	vecf acc[MR][2];
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) acc[i][v] = begin ? (vecf){0} : mm_load_f32(c + i * ld + v * VL);
	for (u64 k = 0; k < steps; k++) {
		vecf x[2];
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) {
			x[v] = *(const vecfu *)(b + v * VL);
#if PACK_B
			if (v * VL % 16 == 0) __builtin_prefetch(b + AHEAD * NR + v * VL); // hardware stops at the end of a page
#endif
		}
		#pragma GCC unroll 16
		for (int i = 0; i < rows; i++) {
			vecf y = a[(u64)i * A_ROW] - (vecf){0};
			#pragma GCC unroll 2
			for (int v = 0; v < vecs; v++) acc[i][v] += y * x[v];
		}
		a += A_STEP;
		b += B_STEP;
	}
	#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		#pragma GCC unroll 2
		for (int v = 0; v < vecs; v++) *(vecfu *)(c + i * ld + v * VL) = acc[i][v];
}

#define MM_TILE(name, rows, vecs) \
	static __attribute__((noinline)) void name(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin) { \
		mm_tile(a, b, steps, c, ld, begin, rows, vecs); \
	}
#define NARROW (N % NR > 0 && N % NR <= VL) // the last panel has one vector
#if M >= MR
MM_TILE(mm_whole, MR, 2)
#if NARROW
MM_TILE(mm_whole_narrow, MR, 1)
#endif
#endif
#if M % MR
MM_TILE(mm_rest, (M % MR), 2)
#if NARROW
MM_TILE(mm_rest_narrow, (M % MR), 1)
#endif
#endif

// mm_any adds to the sums of a tile of any place: rows is MR, or what M leaves of it.
MM_INLINE void mm_any(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, u64 rows, u64 columns) {
#if NARROW
	if (columns <= VL) {
#if M >= MR
		if (rows == MR) { mm_whole_narrow(a, b, steps, c, ld, begin); return; }
#endif
#if M % MR
		mm_rest_narrow(a, b, steps, c, ld, begin);
#endif
		return;
	}
#endif
#if M >= MR
	if (rows == MR) { mm_whole(a, b, steps, c, ld, begin); return; }
#endif
#if M % MR
	mm_rest(a, b, steps, c, ld, begin);
#endif
}

// The sums lie in C where they are what is stored, and no vector of them crosses the end of a row.
#if !defined(EPILOGUE) && N % 16 == 0
#define IN_PLACE 1
#else
#define IN_PLACE 0
#endif

KERNEL {
	const A_T *a = args[0].at;
	const f32 *b = args[1].at;
	C_T *c = args[2].at;
#if PACK_A
	f32 panel[MR * STEPS] __attribute__((aligned(64)));
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
				for (u64 r = 0; r < rows; r += MR) {
					u64 height = MIN(MR, rows - r);
					const A_T *from = a + n * STRIDE_A + (TRANS_A ? k * M + i + r : (i + r) * K + k);
#if PACK_A
					mm_pack(panel, MR, from, TRANS_A ? M : K, !TRANS_A, height, steps);
					const f32 *x = panel;
#else
					const f32 *x = from;
#endif
					for (u64 j = j0; j < j1; j += NR) {
#if PACK_B
						const f32 *y = b + (STRIDE_B ? n * PANELS : 0) + j * K + k * NR;
#else
						const f32 *y = b + n * STRIDE_B + k * N + j;
#endif
						mm_any(x, y, steps, sums + r * ld + (j - j0), ld, k == split * SPLIT, height, N - j);
					}
				}
			}
#if !IN_PLACE
			for (u64 r = 0; r < rows; r++) mm_store(args, c + split * PART, block + r * COLUMNS, j1 - j0, n, i + r, j0);
#endif
		}
	}
}
