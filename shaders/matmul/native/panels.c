#if PACK_A
// mm_pack_block packs the rows of a block, a panel of MR rows after the other.
MM_INLINE void mm_pack_block(f32 *to, const A_T *lines, u64 rows, u64 steps) {
#if TRANS_A
	u64 whole = rows / MR * MR;
	for (u64 k = 0; k < steps; k++) { // in the order in which A lies in memory
		for (u64 r = 0; r < whole; r += MR) {
			f32 *panel = to + r * STEPS + k * MR;
			const A_T *from = lines + k * M + r;
			for (u64 i = 0; i < MR / 4 * 4; i += 4) {
				vec4 four = P_LOAD4(from + i);
				__builtin_memcpy(panel + i, &four, sizeof four);
			}
			for (u64 i = MR / 4 * 4; i < MR; i++) panel[i] = P_WIDEN(from[i]);
		}
	}
	if (whole < rows) mm_pack(to + whole * STEPS, MR, lines + whole, M, 0, rows - whole, steps);
#else
	for (u64 r = 0; r < rows; r += MR) mm_pack(to + r * STEPS, MR, lines + r * K, K, 1, MIN(MR, rows - r), steps);
#endif
}
#endif

