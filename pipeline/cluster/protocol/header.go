package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Header is the header of a message: a value of one of the types in headers.
type Header any

// Write writes a variable to a member's ranks. The payload is its bytes. Coordinator → member.
type Write struct {
	Variable Variable `json:"variable"`
	Begins   bool     `json:"begins,omitempty"` // it is the base of a replica, and all versions of its weights
}

// Variable is a parameter in one of its versions, or a variable of the optimizer.
type Variable struct {
	Name    string         `json:"name,omitempty"`
	State   bool           `json:"state,omitempty"` // of the optimizer
	Version engine.Version `json:"version,omitempty"`
	// Exchange is the kind of a variable for exchanges of replicas; "": it is another one.
	Exchange replicas.Kind `json:"exchange,omitempty"`
}

// Begin announces a segment. Coordinator → member.
type Begin struct {
	Segment   uint64 `json:"segment"`
	Writes    int64  `json:"writes"` // of the epoch before the segment
	Evaluates bool   `json:"evaluates,omitempty"`
	From      int    `json:"from"` // the first batch
	To        int    `json:"to"`   // the batch after the last
	// Flights are the exchanges that have not landed, of a replica that goes on from a checkpoint or joins; nil: the
	// member knows them.
	Flights *[]replicas.Flight `json:"flights,omitempty"`
}

// Batch is the data of a batch. The payload has a tensor for each of Names. Coordinator → member.
type Batch struct {
	Segment uint64   `json:"segment"`
	Batch   int      `json:"batch"`
	Names   []string `json:"names"`
}

// Grant permits the batches before Limit to begin. The payload has the hyperparameters of the last of them. The batches
// before Done are finished, and their data is no longer needed. Coordinator → member.
type Grant struct {
	Segment uint64 `json:"segment"`
	Limit   int    `json:"limit"`
	Done    int    `json:"done"`
}

// End says that no batch from Limit on will begin. Coordinator → member.
type End struct {
	Segment uint64 `json:"segment"`
	Limit   int    `json:"limit"`
}

// Read asks for variables. The payload lists Variable, see EncodeList. Coordinator → member.
type Read struct {
	Number uint64 `json:"number"`
	Writes int64  `json:"writes,omitempty"` // of the epoch before it
}

// Record asks for a trace, in Messages messages of Events in all. With Last it asks for the remaining events, and no
// more. Coordinator → member.
type Record struct {
	Messages int  `json:"messages,omitempty"`
	Last     bool `json:"last,omitempty"`
}

// Result is an engine.Result without its losses or its routing, which are the payload. Numbers that need not be finite
// are the bits of float64. Member → coordinator.
type Result struct {
	Segment    uint64 `json:"segment"`
	Batch      int    `json:"batch,omitempty"`
	Microbatch int    `json:"microbatch,omitempty"`
	Norm       uint64 `json:"norm,omitempty"`
	Scale      uint64 `json:"scale,omitempty"`
	Status     uint32 `json:"status,omitempty"`
	Routing    bool   `json:"routing,omitempty"` // the payload is routing, of a virtual stage
	Stage      int    `json:"stage,omitempty"`
}

// Ended says that a member's ranks have done the batches of the segment before Limit. Member → coordinator.
type Ended struct {
	Segment uint64 `json:"segment"`
	Limit   int    `json:"limit"`
}

// Tensor answers a Read with a variable. The payload is its bytes. Member → coordinator.
type Tensor struct {
	Number   uint64   `json:"number"`
	Variable Variable `json:"variable"`
}

// Fault says that a member's ranks have failed. Member → coordinator.
type Fault struct {
	Error     string `json:"error"`
	Lost      bool   `json:"lost,omitempty"`      // another process or a device is lost, and another attempt may work
	Malformed string `json:"malformed,omitempty"` // the member whose message was malformed; "": none was
}

// Events is a part of a trace. The payload is from EncodeEvents. Member → coordinator.
type Events struct {
	Dropped int  `json:"dropped,omitempty"` // events so far
	Last    bool `json:"last,omitempty"`    // nothing follows
}

// LinkReport says what a member's links carry. The payload lists LinkUse, see EncodeList. Member → coordinator.
type LinkReport struct{}

// Stage carries a message of package stage to a rank. Member → member.
type Stage struct {
	Segment uint64        `json:"segment"`
	To      int           `json:"to"` // rank
	Message stage.Message `json:"message"`
	Taken   int64         `json:"taken"` // when the sender began to read the payload, in Unix nanoseconds of its clock
}

// Move says how far a replica has moved in a fragment of the model. The payload is its message, for the parameters that
// the member's ranks own. Member → coordinator.
type Move struct {
	Step     int `json:"step"` // after which it is sent
	Fragment int `json:"fragment"`
}

// Change changes the base of replicas in a fragment of the model. The payload is the message of the outer step, for the
// parameters that the member's ranks own. Coordinator → member.
type Change struct {
	Step     int  `json:"step"` // after which the fragment was sent
	Fragment int  `json:"fragment"`
	Before   bool `json:"before,omitempty"` // the replica has not begun: it counts at once
}

// Neighbors names the members of other replicas with which a member may have links, in place of those before. The
// payload lists Neighbor, see EncodeList. Coordinator → member.
type Neighbors struct{}

// Relay announces a change that comes in pieces, and to whom the member relays them. The payload is their hashes,
// see Cut. Coordinator → member.
type Relay struct {
	Step     int     `json:"step"`
	Fragment int     `json:"fragment"`
	From     string  `json:"from"`           // the neighbor that relays it, or the coordinator
	Next     string  `json:"next,omitempty"` // the neighbor to which the member relays it; "": none
	Sizes    []int64 `json:"sizes"`          // of the change's tensors
}

// Piece is a part of a change. The payload is its bytes. Coordinator → member, and member → member of another replica.
type Piece struct {
	Step     int `json:"step"`
	Fragment int `json:"fragment"`
	Number   int `json:"number"`
}

// Missing requests a Change that was announced and has not come. Member → coordinator.
type Missing struct {
	Step     int    `json:"step"`
	Fragment int    `json:"fragment"`
	Why      Reason `json:"why"`
}

// Copy brings a version of a parameter that a replica has changed to a member whose ranks hold a copy. The payload is
// its bytes. Member → member.
type Copy struct {
	Param   string         `json:"param"`
	Version engine.Version `json:"version,omitempty"`
}

// Filler is bytes that measure a link. The receiver drops them. Member → member.
type Filler struct{}

// InSegment is the number of the segment that the message is a part of.
func (h Batch) InSegment() uint64 { return h.Segment }
func (h Grant) InSegment() uint64 { return h.Segment }
func (h End) InSegment() uint64   { return h.Segment }
func (h Stage) InSegment() uint64 { return h.Segment }

// headers are the headers of all kinds of messages. The place of a header is the first byte of its encoding: append
// only.
var headers = []Header{nil, Write{}, Begin{}, Batch{}, Grant{}, End{}, Read{}, Record{}, Result{}, Ended{}, Tensor{}, Fault{}, Events{},
	LinkReport{}, Stage{}, Filler{}, Move{}, Change{}, Copy{}, Neighbors{}, Relay{}, Piece{}, Missing{}}

// Encode encodes a header: the byte of its kind, then JSON.
func Encode(h Header) []byte {
	kind := slices.IndexFunc(headers, func(other Header) bool { return reflect.TypeOf(other) == reflect.TypeOf(h) })
	text, err := json.Marshal(h)
	if err != nil || kind <= 0 {
		panic(fmt.Sprintf("protocol: %T is no header: %v", h, err)) // plain structs always marshal
	}
	return append([]byte{byte(kind)}, text...)
}

// Decode decodes a header. Whether its fields are plausible is checked where they are used.
func Decode(text []byte) (Header, error) {
	if len(text) == 0 {
		return nil, errors.New("header of a message: it is empty")
	}
	kind := int(text[0])
	if kind == 0 || kind >= len(headers) {
		return nil, fmt.Errorf("header of a message: found kind %d, expected 1 to %d", kind, len(headers)-1)
	}
	h := reflect.New(reflect.TypeOf(headers[kind]))
	d := json.NewDecoder(bytes.NewReader(text[1:]))
	d.DisallowUnknownFields()
	if err := d.Decode(h.Interface()); err != nil {
		return nil, fmt.Errorf("header of a message: %w", err)
	}
	if d.More() {
		return nil, errors.New("header of a message: more follows the JSON object")
	}
	return h.Elem().Interface(), nil
}

// EncodeResult returns the header and the payload of a result in a segment.
func EncodeResult(segment uint64, r engine.Result) (Result, [][]byte) {
	h := Result{Segment: segment, Batch: r.Batch, Microbatch: r.Microbatch, Norm: math.Float64bits(r.Norm),
		Scale: math.Float64bits(r.Scale), Status: r.Status, Routing: r.Routing != nil, Stage: r.VirtualStage}
	switch {
	case r.Routing != nil:
		return h, [][]byte{exec.F32Bytes(r.Routing)}
	case r.Losses == nil:
		return h, nil
	}
	return h, [][]byte{exec.F32Bytes(r.Losses)}
}

// DecodeResult returns the result of a message.
func DecodeResult(h Result, payload [][]byte) (engine.Result, error) {
	if len(payload) > 1 || len(payload) == 1 && (len(payload[0])%4 != 0 || len(payload[0]) == 0) {
		return engine.Result{}, fmt.Errorf("a result with %d tensors, expected none or one of f32", len(payload))
	}
	r := engine.Result{Batch: h.Batch, Microbatch: h.Microbatch, Norm: math.Float64frombits(h.Norm), Scale: math.Float64frombits(h.Scale),
		Status: h.Status, VirtualStage: h.Stage}
	switch {
	case h.Routing && len(payload) == 0:
		return r, errors.New("routing without a tensor")
	case h.Routing:
		r.Routing = exec.ToF32(payload[0])
	case len(payload) == 1:
		r.Losses = exec.ToF32(payload[0])
	}
	return r, nil
}

// maxErrorText is the length of Fault.Error, in bytes, that a header of a message has room for.
const maxErrorText = 600

// Shorten cuts the middle out of an error that is too long for Fault.Error.
func Shorten(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	half := maxErrorText / 2
	return strings.ToValidUTF8(text[:half], "") + " […] " + strings.ToValidUTF8(text[len(text)-half:], "")
}
