// The sum of the parts: args[0] is the first of them, args[1] the others, [SPLITS - 1][PART], args[2] is C. A group
// stores ROWS of the rows of all matrices. The parts are added in order.
KERNEL {
	const f32 *begin = MM_ARG(0).at, *parts = MM_ARG(1).at;
	C_T *c = MM_ARG(2).at;
	for (u32 group = first; group < last; group++) {
		u64 end = MIN((u64)(group + 1) * ROWS, BATCH * M);
		for (u64 row = (u64)group * ROWS; row < end; row++) {
			for (u64 j = 0; j < N; j += 256) {
				f32 sums[256] __attribute__((aligned(64)));
				u64 n = MIN(256, N - j);
				__builtin_memcpy(sums, begin + row * N + j, n * sizeof(f32));
				for (u64 part = 0; part < SPLITS - 1; part++) {
					const f32 *more = parts + part * PART + row * N + j;
					for (u64 q = 0; q < n; q++) sums[q] += more[q];
				}
				mm_store(args, c, sums, n, row / M, row % M, j);
			}
		}
	}
}
