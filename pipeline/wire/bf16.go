package wire

import "encoding/binary"

// roundBF16 is the bits of the bfloat16 nearest to a float32, the even one of two. NaN stays NaN. Finite values above
// the largest bfloat16 become infinite.
func roundBF16(x uint32) uint32 {
	if x&magnitude > infinite {
		return (x | quiet) >> 16
	}
	return (x + 0x7fff + x>>16&1) >> 16
}

func encodeBF16(dst, tensor []byte) {
	for len(tensor) >= 16 && len(dst) >= 8 {
		a, b := binary.LittleEndian.Uint64(tensor), binary.LittleEndian.Uint64(tensor[8:])
		low := roundBF16(uint32(a)) | roundBF16(uint32(a>>32))<<16
		high := roundBF16(uint32(b)) | roundBF16(uint32(b>>32))<<16
		binary.LittleEndian.PutUint64(dst, uint64(low)|uint64(high)<<32)
		tensor, dst = tensor[16:], dst[8:]
	}
	for i := range len(dst) / 2 {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(roundBF16(bitsAt(tensor, i))))
	}
}

func decodeBF16(tensor, data []byte) {
	for len(data) >= 8 && len(tensor) >= 16 {
		x := binary.LittleEndian.Uint64(data)
		binary.LittleEndian.PutUint64(tensor, x&0xffff<<16|x>>16&0xffff<<48)
		binary.LittleEndian.PutUint64(tensor[8:], x>>32&0xffff<<16|x>>48<<48)
		data, tensor = data[8:], tensor[16:]
	}
	for i := range len(data) / 2 {
		binary.LittleEndian.PutUint32(tensor[4*i:], uint32(binary.LittleEndian.Uint16(data[2*i:]))<<16)
	}
}
