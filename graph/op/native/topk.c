// key orders f32s as TopKOp does, by the bits alone.
static u32 key(f32 x) {
  const u32 u = as_u32_f32(x), order = u > 0x80000000u ? ~u : u | 0x80000000u;
  return (u & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : order;
}

// top takes the K elements of a row one after the other: an element is the first that no earlier one precedes.
static void top(f32 *restrict values, u32 *restrict ids, const f32 *restrict x) {
  u32 last = 0xffffffffu, lastId = 0;
  for (u32 i = 0; i < K; i++) {
    u32 best = 0, id = 0;
    bool found = false;
    for (u32 e = 0; e < COLUMNS; e++) {
      const u32 k = key(x[e]);
      const bool after = i == 0 || k < last || (k == last && e > lastId);
      if (after && (!found || k > best)) best = k, id = e, found = true;
    }
    last = best, lastId = id;
    values[i] = x[id], ids[i] = id;
  }
}
