package host

// Mapping is memory outside Go's heap that devices can import.
type Mapping struct {
	Bytes []byte
	all   []byte // as mapped, with what alignment costs
}
