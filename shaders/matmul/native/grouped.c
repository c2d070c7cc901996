// The product of groups: args[3] is their offsets. Where GROUPED_SUMS, a matrix of C is the sum over the k's of its
// group. Otherwise a group of the kernel takes up to ROWS rows of A of one group, and that group's matrix of B.

KERNEL {
	const A_T *a = MM_ARG(0).at;
	const f32 *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	const u32 *offsets = MM_ARG(3).at;
#if PACK_A
	f32 panels[(BLOCK + MR - 1) / MR * MR * STEPS] __attribute__((aligned(64)));
#endif
#if !IN_PLACE
	f32 block[BLOCK * COLUMNS] __attribute__((aligned(64)));
#endif
	for (u32 group = first; group < last; group++) {
#if GROUPED_SUMS
		u64 at = group, row_blocks = (M + ROWS - 1) / ROWS, column_blocks = (N + COLUMNS - 1) / COLUMNS;
		u64 i0 = at % row_blocks * ROWS, i1 = MIN(i0 + ROWS, M);
		u64 j0 = at / row_blocks % column_blocks * COLUMNS, n = at / row_blocks / column_blocks;
		u64 k1 = MIN(offsets[n + 1], K), k0 = MIN(offsets[n], k1);
		const f32 *matrix = b;
#else
		u64 row_blocks = M / ROWS + GROUPS, j0 = group / row_blocks * COLUMNS, n = 0, k0 = 0, k1 = K, i0, i1;
		u64 e = mm_rows(offsets, group % row_blocks, &i0, &i1);
		const f32 *matrix = b + e * (PACK_B ? PANELS : STRIDE_B);
#endif
		u64 j1 = MIN(j0 + COLUMNS, N);
		for (u64 i = i0; i < i1; i += BLOCK) {
			u64 rows = MIN(BLOCK, i1 - i);
#if IN_PLACE
			f32 *sums = c + (n * M + i) * N + j0;
			const u64 ld = N;
#else
			f32 *sums = block;
			const u64 ld = COLUMNS;
#endif
			if (k0 == k1)
				for (u64 r = 0; r < rows; r++) __builtin_memset(sums + r * ld, 0, (j1 - j0) * sizeof(f32));
			for (u64 k = k0; k < k1; k += STEPS) {
				u64 steps = MIN(STEPS, k1 - k);
				const A_T *lines = a + (TRANS_A ? k * M + i : i * K + k);
#if PACK_A
				mm_pack_block(panels, lines, rows, steps);
#endif
				u64 tile = 0;
				for (u64 j = j0; j < j1; j += NR) {
					const f32 *y = matrix + (PACK_B ? j * K + k * NR : k * N + j);
					for (u64 r = 0; r < rows; r += MR) {
						const A_T *from = lines + r * (TRANS_A ? 1 : K);
#if PACK_A
						const f32 *x = panels + r * STEPS;
#else
						const f32 *x = from;
#endif
						mm_place place = {mm_ahead(from, lines, tile++, (j - j0) / NR, rows, steps), args, (n * M + i + r) * N + j};
						mm_any(x, y, steps, sums + r * ld + (j - j0), ld, k == k0, &place, ROWS_INSIDE ? r == 0 : i == i0, MIN(MR, rows - r), N - j);
					}
				}
			}
#if !IN_PLACE
			for (u64 r = 0; r < rows; r++) mm_store(args, c, block + r * COLUMNS, j1 - j0, n, i + r, j0);
#endif
		}
	}
}
