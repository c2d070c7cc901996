// A product that a core computes in some 50 µs: args[0] is A, args[1] B, args[2] C. A group computes ROWS rows of a
// matrix. There is one register tile, HIGH × NR; where rows or columns are left it computes some that nobody stores. So
// compilers take a third of the time of product.c. Each sum adds its k's in order.

#define WIDE ((N + NR - 1) / NR * NR)

// mm_copy copies a matrix of B with its rows along k, and zeros up to WIDE.
MM_INLINE void mm_copy(f32 *to, const B_T *b) {
	for (u64 k = 0; k < K; k++, to += WIDE) {
		for (u64 j = 0; j < N; j++) to[j] = MM_CALL(mm_widen_, B)(b[TRANS_B ? j * K + k : k * N + j]);
#if WIDE > N
		for (u64 j = N; j < WIDE; j++) to[j] = 0;
#endif
	}
}

// mm_high computes the sums of a tile's rows, each WIDE columns from the one before.
MM_INLINE void mm_high(f32 *sums, const A_T *rows[HIGH], const f32 *b) {
	vecf acc[HIGH][2] = {0};
	for (u64 k = 0; k < K; k++, b += WIDE) {
		const vecf x = *(const vecf *)b, y = *(const vecf *)(b + VL);
		#pragma GCC unroll 4
		for (int r = 0; r < HIGH; r++) {
			const vecf z = MM_CALL(mm_widen_, A)(rows[r][k * (TRANS_A ? M : 1)]) - (vecf){0};
			acc[r][0] = fma_vec(z, x, acc[r][0]);
			acc[r][1] = fma_vec(z, y, acc[r][1]);
		}
	}
	#pragma GCC unroll 4
	for (int r = 0; r < HIGH; r++, sums += WIDE) {
		*(vecf *)sums = acc[r][0];
		*(vecf *)(sums + VL) = acc[r][1];
	}
}

KERNEL {
	const A_T *a = MM_ARG(0).at;
	const B_T *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	f32 copy[K * WIDE] __attribute__((aligned(64))), sums[HIGH * WIDE] __attribute__((aligned(64)));
	u64 copied = BATCH; // none
	for (u64 group = first; group < last; group++) {
		const u64 groups = (M + ROWS - 1) / ROWS, n = group / groups, i0 = group % groups * ROWS, i1 = MIN(i0 + ROWS, M);
		if (copied != n) mm_copy(copy, b + n * STRIDE_B), copied = n;
		for (u64 i = i0; i < i1; i += HIGH) {
			const A_T *rows[HIGH];
			#pragma GCC unroll 4
			for (u64 r = 0; r < HIGH; r++) rows[r] = a + n * STRIDE_A + MIN(i + r, M - 1) * (TRANS_A ? 1 : K);
			for (u64 j = 0; j < WIDE; j += NR) mm_high(sums + j, rows, copy + j);
			for (u64 r = 0; r < MIN(HIGH, i1 - i); r++) mm_store(args, c, sums + r * WIDE, N, n, i + r, 0);
		}
	}
}
