// The function that stores C, args[2], behind the epilogue. C is the type of its elements. The loop counts columns, so that
// the compiler knows that those of a vector are neighbors in the epilogue's arrays.
STORE {
	const u32 end = j + (u32)n;
	C *c = (C *)args[2].at + (at - j);
	#pragma omp simd
	for (u32 q = j; q < end; q++) c[q] = (C)epilogue(args, sums[(u64)q - j], b, i, q);
}
