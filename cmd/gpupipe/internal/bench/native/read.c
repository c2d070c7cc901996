// The sums of blocks of BLOCK bytes of args[0], stored in args[1].

KERNEL {
	f32 *sums = args[1].at;
	for (u32 group = first; group < last; group++) {
		const vecf *x = (const vecf *)((const char *)args[0].at + (u64)group * BLOCK);
		vecf s[8] = {{0}};
		for (int i = 0; i < (int)(BLOCK / VEC_BYTES); i += 8) {
			#pragma GCC unroll 8
			for (int q = 0; q < 8; q++) s[q] += x[i + q];
		}
		for (int q = 1; q < 8; q++) s[0] += s[q];
		f32 sum = 0;
		for (int q = 0; q < (int)(VEC_BYTES / 4); q++) sum += s[0][q];
		sums[group] = sum;
	}
}
