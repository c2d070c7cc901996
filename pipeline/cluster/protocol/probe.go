package protocol

import "fmt"

// ConnectRequest connects members for an epoch without ranks, in which links are measured.
type ConnectRequest struct {
	Epoch uint64 `json:"epoch"`
	Peers []Peer `json:"peers"` // of all members
}

// ProbeRequest asks a member to measure its link to another, in the epoch of ConnectRequest. The reply is a
// partition.Link.
type ProbeRequest struct {
	To      string  `json:"to"`
	Bytes   int64   `json:"bytes"`   // to send at most
	Seconds float64 `json:"seconds"` // after which no more is sent
}

// Bounds of a ProbeRequest.
const (
	MostProbeBytes   = 64 << 20
	MostProbeSeconds = 5
)

// Check refuses a request to send nothing, or too much.
func (q ProbeRequest) Check() error {
	if q.Bytes < 1 || q.Bytes > MostProbeBytes || !(q.Seconds > 0 && q.Seconds <= MostProbeSeconds) {
		return fmt.Errorf("probe of %d bytes in %v s, expected at most %d bytes in %d s", q.Bytes, q.Seconds, int64(MostProbeBytes),
			MostProbeSeconds)
	}
	return nil
}
