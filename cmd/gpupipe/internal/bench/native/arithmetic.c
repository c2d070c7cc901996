// ACCUMULATORS sums of 16 floats each, which stay in registers. args[0] has the factor, the summand and the number of
// rounds, in each of which every sum changes 8 times. The results follow from float 64.

#define VECTORS (ACCUMULATORS * 64 / VEC_BYTES)

KERNEL {
	f32 *x = args[0].at;
	vecf a = (vecf){0} + x[0], b = (vecf){0} + x[1];
	u32 steps = 8 * (u32)x[2];
	for (u32 group = first; group < last; group++) {
		vecf s[VECTORS];
		#pragma GCC unroll 96
		for (int i = 0; i < VECTORS; i++) s[i] = (vecf){0} + (f32)(group + i);
		for (u32 step = 0; step < steps; step++) {
			#pragma GCC unroll 96
			for (int i = 0; i < VECTORS; i++) s[i] = s[i] * a + b;
		}
		#pragma GCC unroll 96
		for (int i = 1; i < VECTORS; i++) s[0] += s[i];
		x[64 + group] = s[0][0];
	}
}
