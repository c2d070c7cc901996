// Of a SYMMETRIC product only the tiles on the diagonal and on the right of it are computed. Their transposes are
// stored where no tile is computed. For A·Aᵀ, and for A·A of an A that equals its transpose bit for bit, the sums at
// (i, j) and at (j, i) add the same products in the same order, so the bits are those of a product of all tiles. Of
// other products (i, j) decides (j, i) beside the tiles on the diagonal.

// mm_first returns the first column from j0 on that is computed of row i, or j1 if none before that is.
MM_INLINE u64 mm_first(u64 i, u64 j0, u64 j1) { return SYMMETRIC ? MIN(MAX(j0, i / MR * MR / NR * NR), j1) : j0; }

#if SYMMETRIC
// mm_mirror stores the transpose of sums, those of the rows from i on and of the columns from j to end, where no tile
// is computed.
MM_INLINE void mm_mirror(const gp_arg *args, C_T *c, const f32 *sums, u64 ld, u64 rows, u64 n, u64 i, u64 j, u64 end) {
	f32 turned[NR * BLOCK] __attribute__((aligned(64)));
	for (; j < end; j += NR, sums += NR) {
		const u64 columns = MIN(NR, end - j);
		mm_pack(turned, BLOCK, sums, ld, 1, rows, columns);
		for (u64 q = 0; q < columns; q++)
			mm_store(args, c, turned + q * BLOCK, mm_first(j + q, i, i + rows) - i, n, j + q, i);
	}
}
#endif

KERNEL {
	const A_T *a = MM_ARG(0).at;
	const f32 *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
#if PACK_A
	f32 panels[(BLOCK + MR - 1) / MR * MR * STEPS] __attribute__((aligned(64)));
#endif
#if !IN_PLACE
	f32 block[BLOCK * COLUMNS] __attribute__((aligned(64)));
#endif
	for (u32 group = first; group < last;) {
		// Consecutive groups with the same columns are computed together, in blocks of about equal height.
		const u64 row_groups = (M + ROWS - 1) / ROWS, column_groups = (N + COLUMNS - 1) / COLUMNS;
		u64 at = group, row = at % row_groups, taken = MIN(row_groups - row, last - group);
		u64 i0 = row * ROWS, i1 = MIN(i0 + taken * ROWS, M);
		group += taken;
		at /= row_groups;
		u64 j0 = at % column_groups * COLUMNS, j1 = MIN(j0 + COLUMNS, N);
		at /= column_groups;
		u64 n = at % BATCH, split = at / BATCH, k1 = MIN((split + 1) * SPLIT, K);
		const u64 blocks = (taken * ROWS + BLOCK - 1) / BLOCK, height = ROWS_INSIDE ? (taken + blocks - 1) / blocks * ROWS : BLOCK;
		for (u64 i = i0; i < i1; i += height) {
			u64 rows = MIN(height, i1 - i), left = mm_first(i, j0, j1);
			if (SYMMETRIC && left == j1) break;
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
				for (u64 j = left; j < j1; j += NR) {
					const u64 end = SYMMETRIC ? MIN(rows, j + NR - i) : rows; // of the rows that have this tile
#if PACK_B
					const f32 *y = b + (STRIDE_B ? n * PANELS : 0) + j * K + k * NR;
#else
					const f32 *y = b + n * STRIDE_B + k * N + j;
#endif
					for (u64 r = 0; r < end; r += MR) {
						const A_T *from = lines + r * (TRANS_A ? 1 : K);
#if PACK_A
						const f32 *x = panels + r * STEPS;
#else
						const f32 *x = from;
#endif
						mm_place place = {mm_ahead(from, lines, tile++, (j - left) / NR, rows, steps), args, split * PART + (n * M + i + r) * N + j};
						mm_any(x, y, steps, sums + r * ld + (j - j0), ld, k == split * SPLIT, &place, ROWS_INSIDE ? r == 0 : i == i0, MIN(MR, rows - r), N - j);
					}
				}
			}
#if !IN_PLACE
			for (u64 r = 0; r < rows; r++) {
				const u64 from = mm_first(i + r, j0, j1);
				mm_store(args, c + split * PART, block + r * COLUMNS + (from - j0), j1 - from, n, i + r, from);
			}
#endif
#if SYMMETRIC
			const u64 beside = MIN(MAX(j0, mm_first(i, 0, N) + NR), j1); // the tiles on the diagonal
			mm_mirror(args, c + split * PART, sums + (beside - j0), ld, rows, n, i, beside, j1);
#endif
		}
	}
}
