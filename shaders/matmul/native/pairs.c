// The passes that bring bf16 into the order in which instructions for pairs read it. A panel of B has PANEL columns:
// [PADDED / 2][PANEL][2], with zeros behind the last column and the last k. Panels begin PANEL_PITCH k's apart.

typedef u16 vec8h __attribute__((vector_size(16)));
typedef u32 mm_pair __attribute__((may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define MM_ZIP(x, y, n) ((vec4)__builtin_shufflevector(x, y, n, 8 + n, 1 + n, 9 + n, 2 + n, 10 + n, 3 + n, 11 + n))
#else
#define MM_ZIP(x, y, n) ((vec4)__builtin_shuffle(x, y, (vec8h){n, 8 + n, 1 + n, 9 + n, 2 + n, 10 + n, 3 + n, 11 + n}))
#endif
MM_INLINE vec8h mm_load8(const u16 *p) { vec8h v; __builtin_memcpy(&v, p, 16); return v; }
MM_INLINE void mm_store4(void *p, vec4 v) { __builtin_memcpy(p, &v, 16); }

#if PACK_A
// args[0] is A, [K][M], args[1] its transpose, rows of LINE elements. A group has PACK_ROWS × PACK_STEPS of a matrix.
MM_INLINE void mm_turn(u16 *to, const u16 *from) { // 8 × 8
	vec4 low[4], high[4], rows[8];
	#pragma GCC unroll 4
	for (int q = 0; q < 4; q++) {
		vec8h x = mm_load8(from + 2 * q * M), y = mm_load8(from + (2 * q + 1) * M);
		low[q] = MM_ZIP(x, y, 0), high[q] = MM_ZIP(x, y, 4);
	}
	mm_rows4(low[0], low[1], low[2], low[3], rows);
	mm_rows4(high[0], high[1], high[2], high[3], rows + 4);
	#pragma GCC unroll 8
	for (int q = 0; q < 8; q++) mm_store4(to + q * LINE, rows[q]);
}

KERNEL {
	const u16 *from = MM_ARG(0).at;
	u16 *to = MM_ARG(1).at;
	for (u32 group = first; group < last; group++) {
		u64 row_blocks = (M + PACK_ROWS - 1) / PACK_ROWS, step_blocks = (K + PACK_STEPS - 1) / PACK_STEPS;
		u64 i0 = group % row_blocks * PACK_ROWS, i1 = MIN(i0 + PACK_ROWS, M);
		u64 k0 = group / row_blocks % step_blocks * PACK_STEPS, k1 = MIN(k0 + PACK_STEPS, K), n = group / row_blocks / step_blocks;
		const u16 *a = from + n * STRIDE_A;
		u16 *turned = to + n * MATRIX_A;
		u64 eights = i0 + (i1 - i0) / 8 * 8, whole = k0 + (k1 - k0) / 8 * 8;
		for (u64 i = i0; i < eights; i += 8)
			for (u64 k = k0; k < whole; k += 8) mm_turn(turned + i * LINE + k, a + k * M + i);
		for (u64 i = i0; i < i1; i++)
			for (u64 k = i < eights ? whole : k0; k < k1; k++) turned[i * LINE + k] = a[k * M + i];
	}
}

#else
// args[0] is B, args[1] the panels, of PANELS elements a matrix. A group packs PACK_STEPS of the k's of PACK_COLUMNS
// columns of a matrix.
#if TRANS_B
MM_INLINE void mm_pack_pairs(u16 *to, const u16 *from, u64 columns, u64 steps, u64 padded) {
	u64 fours = columns / 4 * 4, whole = steps / 8 * 8;
	for (u64 k = 0; k < whole; k += 8) {
		for (u64 j = 0; j < fours; j += 4) {
			const u16 *p = from + j * K + k;
			vec4 rows[4];
			mm_rows4((vec4)mm_load8(p), (vec4)mm_load8(p + K), (vec4)mm_load8(p + 2 * K), (vec4)mm_load8(p + 3 * K), rows);
			#pragma GCC unroll 4
			for (int q = 0; q < 4; q++) mm_store4(to + (k + 2 * q) * PANEL + 2 * j, rows[q]);
		}
	}
	for (u64 j = 0; j < PANEL; j++)
		for (u64 k = j < fours ? whole : 0; k < padded; k++)
			to[k / 2 * 2 * PANEL + 2 * j + k % 2] = j < columns && k < steps ? from[j * K + k] : 0;
}
#else
MM_INLINE void mm_pack_pairs(u16 *to, const u16 *from, u64 columns, u64 steps, u64 padded) {
	const u64 eights = columns / 8 * 8;
	for (u64 k = 0; k < padded; k += 2, to += 2 * PANEL, from += 2 * N) {
		u64 j = 0;
		if (k + 1 < steps) {
			#pragma GCC unroll 4
			for (; j < eights; j += 8) {
				vec8h x = mm_load8(from + j), y = mm_load8(from + N + j);
				mm_store4(to + 2 * j, MM_ZIP(x, y, 0));
				mm_store4(to + 2 * j + 8, MM_ZIP(x, y, 4));
			}
		}
		for (; j < PANEL; j++) {
			to[2 * j] = j < columns && k < steps ? from[j] : 0;
			to[2 * j + 1] = j < columns && k + 1 < steps ? from[N + j] : 0;
		}
	}
}
#endif

KERNEL {
	const u16 *from = MM_ARG(0).at;
	u16 *to = MM_ARG(1).at;
	for (u32 group = first; group < last; group++) {
		u64 columns = (N + PACK_COLUMNS - 1) / PACK_COLUMNS, step_blocks = (PADDED + PACK_STEPS - 1) / PACK_STEPS;
		u64 j0 = group % columns * PACK_COLUMNS, j1 = MIN(j0 + PACK_COLUMNS, N);
		u64 k0 = group / columns % step_blocks * PACK_STEPS, k1 = MIN(k0 + PACK_STEPS, PADDED), n = group / columns / step_blocks;
		u64 most = TRANS_B ? k1 - k0 : 8; // of the k's of a panel at a time
		for (u64 k = k0; k < k1; k += most)
			for (u64 j = j0; j < j1; j += PANEL)
				mm_pack_pairs(to + n * PANELS + j * PANEL_PITCH + k * PANEL, from + n * STRIDE_B + (TRANS_B ? j * K + k : k * N + j),
					N - j >= PANEL ? PANEL : N % PANEL, MIN(most, K - MIN(k, K)), MIN(most, k1 - k));
	}
}
#endif
