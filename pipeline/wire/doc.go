// Package wire encodes the tensors that travel between ranks. A tensor is little-endian float32 on both devices; a
// Format says how its elements are written on the way:
//
//	f32    4 bytes an element: the element itself
//	bf16   2 bytes an element: the upper half of the float32, rounded to nearest, ties to even
//	int8   tiles of 64 elements, the last may be shorter: a bf16 scale, then a signed byte an element
//
// An element of an int8 tile is code × scale. The scale is the least bf16 number s such that the tile's largest
// magnitude is at most 126·s. The code is ⌊x/scale + r⌋, where r is one of the 2¹⁶ multiples of 2⁻¹⁶ in [0, 1): the
// mean of many roundings is x. r is a hash of a Position, which names the run and the message, and of the element's
// index in the tensor. So the bytes are a function of the tensor and of its place in the run, and not of the machine,
// the time or the layout.
//
// Values that are not finite survive. bf16 has them. An int8 tile that has some carries the sign bit of its scale as a
// mark: codes 127, −127 and −128 are then +∞, −∞ and NaN, and the scale counts the finite elements up to 125.
package wire
