// The product of few rows, where reading B once is all the work: args[0] is A, args[1] B, args[2] C. A group computes
// COLUMNS of a matrix, STEPS of the k's at a time. Both are multiples of NR.

#define B_LOAD MM_CALL(mm_load_, B)
#define A_WIDEN MM_CALL(mm_widen_, A)

// mm_part loads n < VL elements and zeros.
MM_INLINE vecf mm_part(const B_T *p, u64 n) {
	B_T part[VL] = {0};
	for (u64 q = 0; q < n; q++) part[q] = p[q];
	return B_LOAD(part);
}

#if TRANS_B
// mm_quad adds every fourth lane.
MM_INLINE vec4 mm_quad(vecf x) {
	vec4 parts[VL / 4], sum;
	__builtin_memcpy(parts, &x, sizeof parts);
	sum = parts[0];
	#pragma GCC unroll 4
	for (int q = 1; q < VL / 4; q++) sum += parts[q];
	return sum;
}

// mm_add adds the products along k, which is contiguous in B, to the sums of the columns. A lane adds every VL-th k.
MM_INLINE void mm_add(const f32 *a, const B_T *b, u64 columns, u64 steps, f32 *sums) {
	for (u64 j = 0; j < columns; j += 4) {
		const B_T *lines[4];
		for (u64 q = 0; q < 4; q++) lines[q] = b + MIN(j + q, columns - 1) * K;
		vecf acc[M][4]; // in registers, if all loops over it are unrolled
		#pragma GCC unroll 4
		for (u64 i = 0; i < M; i++)
			#pragma GCC unroll 4
			for (u64 q = 0; q < 4; q++) acc[i][q] = (vecf){0};
		for (u64 k = 0; k < steps; k += VL) {
			#pragma GCC unroll 4
			for (u64 q = 0; q < 4; q++) {
				if (j + 4 < columns) __builtin_prefetch(lines[q] + k + 4 * K); // The processor's own prefetch ends with a page.
				vecf x = steps - k < VL ? mm_part(lines[q] + k, steps - k) : B_LOAD(lines[q] + k);
				#pragma GCC unroll 4
				for (u64 i = 0; i < M; i++) acc[i][q] = fma_vec(*(const vecfu *)(a + i * STEPS + k), x, acc[i][q]);
			}
		}
		#pragma GCC unroll 4
		for (u64 i = 0; i < M; i++) {
			vec4 quads[4], rows[4];
			#pragma GCC unroll 4
			for (u64 q = 0; q < 4; q++) quads[q] = mm_quad(acc[i][q]);
			mm_rows4(quads[0], quads[1], quads[2], quads[3], rows);
			*(vec4 *)(sums + i * COLUMNS + j) += (rows[0] + rows[1]) + (rows[2] + rows[3]);
		}
	}
}
#else
// mm_steps adds the products of count of the k's to the sums of the columns, which are contiguous in B.
MM_INLINE void mm_steps(const f32 *a, const B_T *b, u64 columns, f32 *sums, const int count) {
	for (u64 j = 0; j < columns; j += VL) {
		vecf x[4];
		#pragma GCC unroll 4
		for (int q = 0; q < count; q++) x[q] = columns - j < VL ? mm_part(b + q * (u64)N + j, columns - j) : B_LOAD(b + q * (u64)N + j);
		#pragma GCC unroll 4
		for (u64 i = 0; i < M; i++) {
			vecf s = *(const vecfu *)(sums + i * COLUMNS + j);
			#pragma GCC unroll 4
			for (int q = 0; q < count; q++) s = fma_vec(a[i * STEPS + q] - (vecf){0}, x[q], s);
			*(vecfu *)(sums + i * COLUMNS + j) = s;
		}
	}
}

MM_INLINE void mm_add(const f32 *a, const B_T *b, u64 columns, u64 steps, f32 *sums) {
	u64 k = 0;
	for (; k + 4 <= steps; k += 4) mm_steps(a + k, b + k * N, columns, sums, 4);
	for (; k < steps; k++) mm_steps(a + k, b + k * N, columns, sums, 1);
}
#endif

KERNEL {
	const A_T *a = MM_ARG(0).at;
	const B_T *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	f32 wide[M * STEPS] __attribute__((aligned(64))), sums[M * COLUMNS] __attribute__((aligned(64)));
	for (u32 group = first; group < last; group++) {
		u64 blocks = (N + COLUMNS - 1) / COLUMNS, j0 = group % blocks * COLUMNS, n = group / blocks, columns = MIN(COLUMNS, N - j0);
		for (u64 i = 0; i < M; i++) __builtin_memset(sums + i * COLUMNS, 0, (columns + NR - 1) / NR * NR * sizeof(f32));
		for (u64 k0 = 0; k0 < K; k0 += STEPS) {
			u64 steps = MIN(STEPS, K - k0);
			for (u64 i = 0; i < M; i++) {
				for (u64 k = 0; k < steps; k++)
					wide[i * STEPS + k] = A_WIDEN(a[n * STRIDE_A + (TRANS_A ? (k0 + k) * M + i : i * K + k0 + k)]);
				for (u64 k = steps; k < (steps + VL - 1) / VL * VL; k++) wide[i * STEPS + k] = 0;
			}
			mm_add(wide, b + n * STRIDE_B + (TRANS_B ? j0 * K + k0 : k0 * N + j0), columns, steps, sums);
		}
		for (u64 i = 0; i < M; i++) mm_store(args, c, sums + i * COLUMNS, columns, n, i, j0);
	}
}
