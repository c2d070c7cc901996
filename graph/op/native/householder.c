// Sums, extremes and reflections as the kernels for GPUs compute them: lane l of LANES has every LANES-th element from
// l on, and the lanes' results are folded in halves.

static f32 total(f32 *part) {
  for (u32 n = LANES / 2; n > 0; n /= 2) for (u32 l = 0; l < n; l++) part[l] += part[l + n];
  return part[0];
}

// reflection replaces the vector x of count elements, stride apart, by the vector v of the Householder reflection
// I − β·v·vᵀ that maps x to a multiple of the first unit vector. It returns β, and sets that multiple, −sign(x₀)·‖x‖. β
// is 0 if x is 0.
static f32 reflection(f32 *x, u64 stride, u64 count, f32 *multiple) {
  f32 part[LANES] = {0}, unit = 0;
  for (u64 i = 0; i < count; i++) unit = max_f32(unit, abs_f32(x[i * stride])); // in these units nothing over- or underflows
  const f32 scale = unit > 1e-37f ? 1.0f / unit : 0.0f;
  for (u64 i = 0; i < count; i++) {
    const f32 y = x[i * stride] * scale;
    part[i % LANES] += y * y;
  }
  const f32 norm = sqrt_f32(total(part)), first = x[0] * scale;
  for (u64 i = 0; i < count; i++) x[i * stride] = x[i * stride] * scale + (i == 0 ? first < 0.0f ? -norm : norm : 0.0f);
  *multiple = (first < 0.0f ? norm : -norm) * unit;
  return norm > 0.0f ? 1.0f / (norm * (norm + abs_f32(first))) : 0.0f;
}
