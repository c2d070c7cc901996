// The grouped product by its definition: args[0] is A, args[1] B, args[2] C, args[3] the groups' offsets. A group of
// this kernel computes a row of C.
KERNEL {
	const A_T *a = MM_ARG(0).at;
	const B_T *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	const u32 *offsets = MM_ARG(3).at;
	for (u32 group = first; group < last; group++) {
		u64 n = group / M, i = group % M, k0 = 0, k1 = K, e = 0;
#if GROUPED_SUMS
		k1 = MIN(offsets[n + 1], K), k0 = MIN(offsets[n], k1);
#else
		for (u64 q = 1; q < GROUPS; q++) e += offsets[q] <= i;
#endif
		for (u64 j = 0; j < N; j++) {
			f32 s = 0;
			for (u64 k = k0; k < k1; k++)
				s = fma_f32(MM_CALL(mm_widen_, A)(a[TRANS_A ? k * M + i : i * K + k]),
					MM_CALL(mm_widen_, B)(b[e * STRIDE_B + (TRANS_B ? j * K + k : k * N + j)]), s);
			c[(n * M + i) * N + j] = (C_T)VALUE(s, (u32)n, (u32)i, (u32)j);
		}
	}
}
