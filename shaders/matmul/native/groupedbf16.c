// The product of groups: args[3] is their offsets. Where GROUPED_SUMS, a matrix of C is the sum over the k's of its
// group, whose panels begin at mm_place. Otherwise a group of the kernel takes up to ROWS rows of A of one group, and
// that group's matrix of B. Rows that a group leaves are computed with zeros up to a whole tile, and not stored.

#if GROUPED_SUMS || UNIT_AMX
#define MM_GRAIN ROW_GRAIN
#else
#define MM_GRAIN TILE
#endif
#define MM_GRAINS(rows) (((rows) + MM_GRAIN - 1) / MM_GRAIN * MM_GRAIN)

KERNEL {
	const u16 *a = MM_ARG(0).at, *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	const u32 *offsets = MM_ARG(3).at;
	u16 panel[BLOCK * PITCH] __attribute__((aligned(64)));
	f32 block[BLOCK * COLUMNS] __attribute__((aligned(64)));
	mm_configure();
	for (u32 group = first; group < last; group++) {
#if GROUPED_SUMS
		u64 at = group, row_blocks = (M + ROWS - 1) / ROWS, column_blocks = (N + COLUMNS - 1) / COLUMNS;
		u64 i0 = at % row_blocks * ROWS, i1 = MIN(i0 + ROWS, M);
		u64 j0 = at / row_blocks % column_blocks * COLUMNS, n = at / row_blocks / column_blocks;
		u64 k1 = MIN(offsets[n + 1], K), k0 = MIN(offsets[n], k1);
		const u16 *panels = b + MM_PLACE(k0, n) * PANEL;
#else
		u64 row_blocks = GROUPED / ROWS + GROUPS, j0 = group / row_blocks * COLUMNS, n = 0, k0 = 0, k1 = K, i0, i1;
		const u16 *panels = b + mm_rows(offsets, group % row_blocks, &i0, &i1) * PANELS;
#endif
		u64 j1 = MIN(j0 + COLUMNS, N);
		for (u64 i = i0; i < i1; i += BLOCK) {
			u64 rows = MIN(BLOCK, i1 - i), grains = MM_GRAINS(rows), ld = COLUMNS;
			f32 *sums = block;
#if !defined(EPILOGUE) && N % PANEL == 0
			if (rows == grains) sums = (f32 *)c + (n * M + i) * N + j0, ld = N;
#endif
			if (k0 == k1)
				for (u64 r = 0; r < rows; r++) __builtin_memset(sums + r * ld, 0, (j1 - j0) * sizeof(f32));
			for (u64 k = k0; k < k1; k += STEPS) {
				u64 steps = MIN(STEPS, k1 - k), tile = 0;
				mm_copy(panel, a + i * LINE + k, rows, steps);
				for (u64 r = rows; r < grains; r++) __builtin_memset(panel + r * PITCH, 0, 2 * STEP_ROUND(steps));
				for (u64 j = j0; j < j1; j += PANEL)
					for (u64 r = 0; r < rows; r += TILE) {
						const mm_ahead ahead = {a + (i + BLOCK + tile) * LINE + k, LINE, args, (n * M + i + r) * N + j, k + STEPS >= k1};
						tile = tile + AHEAD < BLOCK ? tile + AHEAD : 0;
						mm_any(panel + r * PITCH, panels + j * PANEL_PITCH + (k - k0) * PANEL, STEP_ROUND(steps), sums + r * ld + (j - j0), ld,
							k == k0, &ahead, grains - r, N - j);
					}
			}
			if (sums == block)
				for (u64 r = 0; r < rows; r++) mm_store(args, c, block + r * COLUMNS, j1 - j0, n, i + r, j0);
		}
	}
	mm_release();
}
