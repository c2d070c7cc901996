// The sums of whole tiles lie in C where they are what is stored, and no panel crosses the end of a row.
#if !defined(EPILOGUE) && N % PANEL == 0
#define IN_PLACE(rows) ((rows) % ROW_GRAIN == 0)
#else
#define IN_PLACE(rows) 0
#endif

// mm_next returns row r of the block of A at next. A part of a panel, with PACKED_A, is contiguous: it is fetched in
// pieces as long as rows, steps elements.
MM_INLINE const u16 *mm_next(const u16 *next, u64 r, u64 steps) {
#if PACKED_A
	return next + r * steps;
#else
	return next + r * LINE;
#endif
}

KERNEL {
	const u16 *a = MM_ARG(0).at, *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
#if !PACKED_A
	u16 panel[BLOCK * PITCH] __attribute__((aligned(64)));
#endif
	f32 block[BLOCK * COLUMNS] __attribute__((aligned(64)));
	mm_configure();
	for (u32 group = first; group < last; group++) {
		u64 at = group, row_blocks = (M + ROWS - 1) / ROWS, column_blocks = (N + COLUMNS - 1) / COLUMNS;
		u64 i0 = at % row_blocks * ROWS, i1 = MIN(i0 + ROWS, M);
		at /= row_blocks;
		u64 j0 = at % column_blocks * COLUMNS, j1 = MIN(j0 + COLUMNS, N);
		at /= column_blocks;
		u64 n = at % BATCH, split = at / BATCH, k1 = MIN((split + 1) * SPLIT, K);
		const u16 *panels = b + (STRIDE_B ? n * PANELS : 0);
		for (u64 i = i0; i < i1; i += BLOCK) {
			u64 rows = MIN(BLOCK, i1 - i), ld = COLUMNS;
			f32 *sums = block;
			if (IN_PLACE(rows)) sums = (f32 *)c + split * PART + (n * M + i) * N + j0, ld = N;
			for (u64 k = split * SPLIT; k < k1; k += STEPS) {
				u64 steps = MIN(STEPS, k1 - k), tile = 0;
				const u64 complete = k + STEPS >= k1, next_i = complete ? i + BLOCK : i, next_k = complete ? split * SPLIT : k + STEPS;
#if PACKED_A // x is a part of a panel, else the copy of a block of rows
				const u16 *x = a + n * MATRIX_A + i * PANEL_PITCH + k * BLOCK, *next = a + n * MATRIX_A + next_i * PANEL_PITCH + next_k * BLOCK;
#else
				const u16 *x = panel, *next = a + n * MATRIX_A + next_i * LINE + next_k;
				mm_copy(panel, a + n * MATRIX_A + i * LINE + k, rows, steps);
#endif
				for (u64 j = j0; j < j1; j += PANEL)
					for (u64 r = 0; r < rows; r += TILE) {
						const mm_ahead ahead = {mm_next(next, tile, steps), mm_next(next, 1, steps) - next, args, (n * M + i + r) * N + j, complete};
						tile = tile + AHEAD < BLOCK ? tile + AHEAD : 0;
						mm_any(x + r * A_ROW, panels + j * PANEL_PITCH + k * PANEL, STEP_ROUND(steps), sums + r * ld + (j - j0), ld,
							k == split * SPLIT, &ahead, rows - r, N - j);
					}
			}
			if (sums == block)
				for (u64 r = 0; r < rows; r++) mm_store(args, c + split * PART, block + r * COLUMNS, j1 - j0, n, i + r, j0);
		}
	}
	mm_release();
}
