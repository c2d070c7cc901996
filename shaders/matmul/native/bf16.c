// The sums of whole tiles lie in C where they are what is stored, and no panel crosses the end of a row.
#if !defined(EPILOGUE) && N % PANEL == 0
#define IN_PLACE(rows) ((rows) % ROW_GRAIN == 0)
#else
#define IN_PLACE(rows) 0
#endif

KERNEL {
	const u16 *a = MM_ARG(0).at, *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	u16 panel[BLOCK * PITCH] __attribute__((aligned(64)));
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
				u64 steps = MIN(STEPS, k1 - k);
				mm_copy(panel, a + n * MATRIX_A + i * LINE + k, rows, steps);
				for (u64 j = j0; j < j1; j += PANEL)
					for (u64 r = 0; r < rows; r += TILE)
						mm_any(panel + r * PITCH, panels + j * PADDED + k * PANEL, STEP_ROUND(steps), sums + r * ld + (j - j0), ld,
							k == split * SPLIT, rows - r, N - j);
			}
			if (sums == block)
				for (u64 r = 0; r < rows; r++) mm_store(args, c + split * PART, block + r * COLUMNS, j1 - j0, n, i + r, j0);
		}
	}
	mm_release();
}
