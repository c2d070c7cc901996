package host

// Mapping is memory of the host outside of Go's heap, that devices can import.
type Mapping struct {
	Bytes []byte
	all   []byte // as the system gave it
}
