#define NARROW (N % NR > 0 && N % NR <= VL) // the last panel has one vector
#if M >= MR
MM_TILE(mm_whole, MR, 2)
#if NARROW
MM_TILE(mm_whole_narrow, MR, 1)
#endif
#endif
#if M % MR
MM_TILE(mm_rest, (M % MR), 2)
#if NARROW
MM_TILE(mm_rest_narrow, (M % MR), 1)
#endif
#endif

// mm_any adds to the sums of a tile of any place: rows is MR, or what M leaves of it.
MM_INLINE void mm_any(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold, u64 rows, u64 columns) {
#if NARROW
	if (columns <= VL) {
#if M >= MR
		if (rows == MR) { mm_whole_narrow(a, b, steps, c, ld, begin, place, cold); return; }
#endif
#if M % MR
		mm_rest_narrow(a, b, steps, c, ld, begin, place, cold);
#endif
		return;
	}
#endif
#if M >= MR
	if (rows == MR) {
		mm_whole(a, b, steps, c, ld, begin, place, cold);
		return;
	}
#endif
#if M % MR
	mm_rest(a, b, steps, c, ld, begin, place, cold);
#endif
}

