package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Kind is what a message is.
type Kind uint8

const (
	Write      Kind = iota + 1 // coordinator → member: a variable of its ranks; the payload is its bytes
	Begin                      // coordinator → member: a segment
	Batch                      // coordinator → member: the data of a batch; the payload has a tensor for each of Names
	Grant                      // coordinator → member: batches may begin; the payload has the hyperparameters of the last of them
	End                        // coordinator → member: no batch from Limit on will begin
	Read                       // coordinator → member: send variables; the payload is a JSON list of Variable
	Record                     // coordinator → member: record a trace, and send Limit messages of Events in all; Last: send what is left, and no more
	Result                     // member → coordinator: what a rank has measured; the payload is the losses of a microbatch
	Ended                      // member → coordinator: its ranks have done the batches of the segment before Limit
	Tensor                     // member → coordinator: a variable; the payload is its bytes
	Fault                      // member → coordinator: its ranks have failed
	Events                     // member → coordinator: a trace; the payload is from EncodeEvents. Done: events that were dropped. Last: nothing follows
	Stage                      // rank → rank: a message of package stage
	LinkReport                 // member → coordinator: what its links carry; the payload is from EncodeLinks
	Filler                     // member → member: bytes that measure a link; the receiver drops them
	kinds
)

// Variable is a parameter in one of its versions, or a variable of the optimizer.
type Variable struct {
	Name    string         `json:"name,omitempty"`
	State   bool           `json:"state,omitempty"` // of the optimizer
	Version engine.Version `json:"version,omitempty"`
}

// Header is the header of a message. Fields that its kind does not need are zero.
type Header struct {
	Kind    Kind   `json:"kind"`
	Segment uint64 `json:"segment,omitempty"`

	Variable  Variable `json:"variable,omitzero"`
	Number    uint64   `json:"number,omitempty"` // Read, Tensor: of the read
	Writes    int64    `json:"writes,omitempty"` // Begin: writes of the epoch before it
	Evaluates bool     `json:"evaluates,omitempty"`
	From      int      `json:"from,omitempty"` // Begin: the first batch
	To        int      `json:"to,omitempty"`   // Begin: the batch after the last. Stage: the receiving rank
	Batch     int      `json:"batch,omitempty"`
	Names     []string `json:"names,omitempty"`
	Limit     int      `json:"limit,omitempty"`
	Done      int      `json:"done,omitempty"`  // Grant: batches before it are finished, and their data is no longer needed
	Taken     int64    `json:"taken,omitempty"` // Stage: when the sender began to read the payload, in Unix nanoseconds of its clock

	Last bool `json:"last,omitempty"`

	Message  stage.Message `json:"message,omitzero"`
	Measured *Measured     `json:"measured,omitempty"` // Result
	Error    string        `json:"error,omitempty"`
	Lost     bool          `json:"lost,omitempty"` // Fault: another process or a device is lost, and another attempt may work
	// Malformed is, in a Fault, the member whose message was malformed.
	Malformed string `json:"malformed,omitempty"`
}

// Measured is an engine.Result without its losses or its routing, which are the payload. Numbers that need not be finite are the bits
// of float64.
type Measured struct {
	Batch      int    `json:"batch,omitempty"`
	Microbatch int    `json:"microbatch,omitempty"`
	Norm       uint64 `json:"norm,omitempty"`
	Scale      uint64 `json:"scale,omitempty"`
	Status     uint32 `json:"status,omitempty"`
	Routing    bool   `json:"routing,omitempty"` // the payload is routing, of a virtual stage
	Stage      int    `json:"stage,omitempty"`
}

// EncodeResult returns the header and the payload of a result in a segment.
func EncodeResult(segment uint64, r engine.Result) (Header, [][]byte) {
	h := Header{Kind: Result, Segment: segment, Measured: &Measured{Batch: r.Batch, Microbatch: r.Microbatch, Norm: math.Float64bits(r.Norm),
		Scale: math.Float64bits(r.Scale), Status: r.Status, Routing: r.Routing != nil, Stage: r.VirtualStage}}
	switch {
	case r.Routing != nil:
		return h, [][]byte{exec.F32Bytes(r.Routing)}
	case r.Losses == nil:
		return h, nil
	}
	return h, [][]byte{exec.F32Bytes(r.Losses)}
}

// DecodeResult returns the result of a message.
func DecodeResult(h Header, payload [][]byte) (engine.Result, error) {
	m := h.Measured
	if m == nil || len(payload) > 1 || len(payload) == 1 && (len(payload[0])%4 != 0 || len(payload[0]) == 0) {
		return engine.Result{}, fmt.Errorf("a result with %d tensors, expected none or one of f32", len(payload))
	}
	r := engine.Result{Batch: m.Batch, Microbatch: m.Microbatch, Norm: math.Float64frombits(m.Norm), Scale: math.Float64frombits(m.Scale), Status: m.Status, VirtualStage: m.Stage}
	switch {
	case m.Routing && len(payload) == 0:
		return r, fmt.Errorf("routing without a tensor")
	case m.Routing:
		r.Routing = exec.ToF32(payload[0])
	case len(payload) == 1:
		r.Losses = exec.ToF32(payload[0])
	}
	return r, nil
}

// maxErrorText is the length of Header.Error, in bytes, that a header of a message has room for.
const maxErrorText = 600

// Shorten cuts the middle out of an error that is too long for Header.Error.
func Shorten(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	half := maxErrorText / 2
	return strings.ToValidUTF8(text[:half], "") + " […] " + strings.ToValidUTF8(text[len(text)-half:], "")
}

// Encode encodes a header.
func (h Header) Encode() []byte {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return text
}

// Decode decodes a header. Whether its fields are plausible is checked where they are used.
func Decode(text []byte) (h Header, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, fmt.Errorf("header of a message: %w", err)
	}
	if d.More() {
		return h, fmt.Errorf("header of a message: more follows the JSON object")
	}
	if h.Kind == 0 || h.Kind >= kinds {
		return h, fmt.Errorf("header of a message: found kind %d, expected 1 to %d", h.Kind, kinds-1)
	}
	return h, nil
}
