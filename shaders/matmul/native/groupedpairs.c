// The pass that brings B, [K][N], into the order in which instructions for pairs read it: args[0] is B, args[1] the
// panels, [PADDED / 2][PANEL][2], args[2] the groups' offsets. The k's of a group begin at MM_PLACE and end with zeros
// up to a multiple of GRAIN. A group of the kernel packs PACK_STEPS of the places of PACK_COLUMNS columns.
typedef u32 mm_pair __attribute__((may_alias));

KERNEL {
	const u16 *from = MM_ARG(0).at;
	u16 *to = MM_ARG(1).at;
	const u32 *offsets = MM_ARG(2).at;
	for (u32 group = first; group < last; group++) {
		u64 columns = (N + PACK_COLUMNS - 1) / PACK_COLUMNS;
		u64 j0 = group % columns * PACK_COLUMNS, j1 = MIN(j0 + PACK_COLUMNS, N);
		u64 p0 = group / columns * PACK_STEPS, p1 = MIN(p0 + PACK_STEPS, PADDED);
		for (u64 e = 0; e < GROUPS; e++) {
			u64 k1 = MIN(offsets[e + 1], K), k0 = MIN(offsets[e], k1), begin = MM_PLACE(k0, e), end = begin + (k1 - k0 + GRAIN - 1) / GRAIN * GRAIN;
			for (u64 p = begin < p0 ? p0 : begin; p < MIN(end, p1); p += 2) {
				u64 k = k0 + (p - begin);
				const u16 *row = from + k * N;
				for (u64 j = j0; j < j1; j += PANEL) {
					u16 *pairs = to + j * PANEL_PITCH + p * PANEL;
					u64 n = MIN(PANEL, N - j);
					if (n == PANEL && k + 1 < k1) {
						mm_pair *whole = (mm_pair *)pairs;
						for (u64 q = 0; q < PANEL; q++) whole[q] = (u32)row[j + q] | (u32)row[N + j + q] << 16;
						continue;
					}
					for (u64 q = 0; q < n; q++) {
						pairs[2 * q] = k < k1 ? row[j + q] : 0;
						pairs[2 * q + 1] = k + 1 < k1 ? row[N + j + q] : 0;
					}
					for (u64 q = n; q < PANEL; q++) pairs[2 * q] = pairs[2 * q + 1] = 0;
				}
			}
		}
	}
}
