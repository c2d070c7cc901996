// Blocks of BLOCK bytes: args[0] = args[1], or of three ARRAYS args[0] = args[1] + 0.5 args[2].

KERNEL {
	for (u32 group = first; group < last; group++) {
		vecf *y = (vecf *)((char *)args[0].at + (u64)group * BLOCK);
		const vecf *x0 = (const vecf *)((const char *)args[1].at + (u64)group * BLOCK);
#if ARRAYS == 3
		const vecf *x1 = (const vecf *)((const char *)args[2].at + (u64)group * BLOCK);
		for (int i = 0; i < (int)(BLOCK / VEC_BYTES); i++) y[i] = x0[i] + 0.5f * x1[i];
#else
		for (int i = 0; i < (int)(BLOCK / VEC_BYTES); i++) y[i] = x0[i];
#endif
	}
}
