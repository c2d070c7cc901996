// The pass that packs B: args[0] is B, args[1] the panels, [BATCH][columns / NR][K][NR], of PANELS elements a matrix.
// A group packs PACK_STEPS of the k's of PACK_COLUMNS columns of a matrix.
KERNEL {
	const B_T *from = MM_ARG(0).at;
	f32 *to = MM_ARG(1).at;
	for (u32 group = first; group < last; group++) {
		u64 columns = (N + PACK_COLUMNS - 1) / PACK_COLUMNS, steps = (K + PACK_STEPS - 1) / PACK_STEPS;
		u64 j0 = group % columns * PACK_COLUMNS, k0 = group / columns % steps * PACK_STEPS, b = group / columns / steps;
		u64 k1 = MIN(k0 + PACK_STEPS, K);
		const B_T *matrix = from + b * STRIDE_B;
		f32 *panels = to + b * PANELS + k0 * NR;
		const u64 j1 = MIN(j0 + PACK_COLUMNS, N), most = TRANS_B ? k1 - k0 : 1; // rows of B are read in order
		for (u64 k = k0; k < k1; k += most) {
			for (u64 j = j0; j < j1; j += NR) {
				f32 *panel = panels + j * K + (k - k0) * NR;
				if (TRANS_B) mm_pack(panel, NR, matrix + j * K + k, K, 1, MIN(N - j, NR), most);
				else mm_pack(panel, NR, matrix + k * N + j, N, 0, MIN(N - j, NR), 1);
			}
		}
	}
}
