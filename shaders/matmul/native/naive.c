// The product by its definition: args[0] is A, args[1] B, args[2] C. A group computes a row.
KERNEL {
	const A_T *a = MM_ARG(0).at;
	const B_T *b = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	for (u32 group = first; group < last; group++) {
		u64 n = group / M, i = group % M;
		for (u64 j = 0; j < N; j++) {
			f32 s = 0;
			for (u64 k = 0; k < K; k++)
				s = fma_f32(MM_CALL(mm_widen_, A)(a[n * STRIDE_A + (TRANS_A ? k * M + i : i * K + k)]),
					MM_CALL(mm_widen_, B)(b[n * STRIDE_B + (TRANS_B ? j * K + k : k * N + j)]), s);
			c[(n * M + i) * N + j] = (C_T)VALUE(s, (u32)n, (u32)i, (u32)j);
		}
	}
}
