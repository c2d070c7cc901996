package wire

// Random is the 16 random bits of an element.
func Random(key Key, element int) uint16 {
	return uint16(key.random(element/4) >> (16 * (element % 4)))
}
