package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// The requests of the coordinator. Request and reply are JSON.
const (
	Measure = "measure" // MeasureRequest → Costs
	Connect = "connect" // ConnectRequest → nothing
	Probe   = "probe"   // ProbeRequest → partition.Link
	Plan    = "plan"    // PlanRequest → PlanReply
	Load    = "load"    // OfEpoch → LoadReply
	Release = "release" // OfEpoch → nothing
	Lend    = "lend"    // AtRest → nothing: the member keeps its evaluated weights, and takes others for an evaluation
	Return  = "return"  // AtRest → nothing: the member has the weights again that it kept
)

// OfEpoch is a request for the ranks of an epoch. One that comes late concerns no other epoch.
type OfEpoch struct {
	Epoch uint64 `json:"epoch"`
}

// AtRest is a request for weights between two segments, behind the messages that were sent before it: requests and
// messages may overtake each other.
type AtRest struct {
	OfEpoch
	Writes int64  `json:"writes"` // of the epoch before the request
	Read   uint64 `json:"read"`   // the newest Read before the request
}

// Task is what a run trains. A member builds model and loss again, in the sandbox if modules write them.
type Task struct {
	Config  string            `json:"config"`            // YAML, with every default written out
	Modules map[string][]byte `json:"modules,omitempty"` // contents of the modules that build model and loss, by file name
	Aligned []Aligned         `json:"aligned,omitempty"`
	Added   model.Inputs      `json:"added"`             // what other modules add to batches
	Replica int               `json:"replica,omitempty"` // its number, of replicas that train on their own
}

// Aligned describes a tensor of data.aligned, of which only the coordinator has the data.
type Aligned struct {
	Name  string            `json:"name"`
	DType safetensors.DType `json:"dtype"`
	Shape []int             `json:"shape"`
}

// MeasureRequest asks for the costs of the model on devices.
type MeasureRequest struct {
	Task
	Devices  []string `json:"devices"`  // names; one that occurs twice is shared
	Modelled bool     `json:"modelled"` // run nothing: estimate
}

// PlanRequest assigns ranks to members.
type PlanRequest struct {
	Task
	Epoch     uint64  `json:"epoch"`
	Cut       []int   `json:"cut"`
	Recompute []bool  `json:"recompute"`
	Split     bool    `json:"split"` // the schedule has split backward passes
	Ranks     []Place `json:"ranks"`
	Peers     []Peer  `json:"peers"` // of all members and the coordinator
}

// Place is where a rank is.
type Place struct {
	Member string `json:"member"`
	Device string `json:"device"`
}

// Peer is a member or the coordinator.
type Peer struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses,omitempty"`
}

// PlanReply describes the ranks of a member.
type PlanReply struct {
	Ranks map[int]engine.RankPlan `json:"ranks"`
	Reads []string                `json:"reads"` // variables of a batch that they read
	Notes []string                `json:"notes,omitempty"`
}

// LoadReply is what the devices of a member have allocated, by rank.
type LoadReply struct {
	Allocated map[int]int64 `json:"allocated"`
	Staging   map[int]int64 `json:"staging"`
	Notes     []string      `json:"notes,omitempty"`
}

// Costs are the measured fields of a partition.Problem.
type Costs struct {
	Units    []partition.Unit   `json:"units"`
	Devices  []partition.Device `json:"devices"`
	Times    [][]partition.Time `json:"times"` // by device and unit
	Given    int64              `json:"given"`
	Modelled bool               `json:"modelled"`
}

// CostsOf returns the measured fields of a problem.
func CostsOf(p partition.Problem, modelled bool) Costs {
	c := Costs{Units: p.Units, Devices: p.Devices, Given: p.Given, Modelled: modelled}
	for _, d := range p.Devices {
		c.Times = append(c.Times, d.Times)
	}
	return c
}

// Check checks what a member has measured on so many devices.
func (c Costs) Check(devices int) error {
	if len(c.Devices) != devices || len(c.Times) != devices {
		return fmt.Errorf("costs of %d devices and times of %d, expected %d", len(c.Devices), len(c.Times), devices)
	}
	for i, times := range c.Times {
		if len(times) != len(c.Units) {
			return fmt.Errorf("%s: times of %d units, expected %d", c.Devices[i].Name, len(times), len(c.Units))
		}
		for _, t := range times {
			if shortest := min(t.Forward, t.Backward, t.InputGrad, t.WeightGrad, t.Update); !(shortest >= 0) {
				return fmt.Errorf("%s: a time of %v seconds, expected none below 0", c.Devices[i].Name, shortest)
			}
		}
	}
	return nil
}

// Info describes a member. It sends that when it connects.
type Info struct {
	Host      string   `json:"host"`      // name of the machine
	System    string   `json:"system"`    // as in linux/amd64
	Addresses []string `json:"addresses"` // host:port for tensors, most useful first; none: others cannot dial it
	Devices   []Device `json:"devices"`
	// Tab is set by a browser tab: the hexadecimal SHA-256 of a secret by which its page says that it is closed. A tab
	// only dials, and the addresses of its peers are paths of the proxy of the coordinator's page.
	Tab string `json:"tab,omitempty"`
}

// TabHash is the hash of the secret by which the page of a tab says that it is closed.
func TabHash(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// Encode encodes the description.
func (i Info) Encode() []byte {
	text, err := json.Marshal(i)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return text
}

// Device is a device that a member offers, for one rank.
type Device struct {
	Name   string      `json:"name"` // with which it is opened
	Info   device.Info `json:"info"`
	Memory int64       `json:"memory"` // bytes; 0: unknown
}

// DeviceNames lists the names of the devices.
func (i Info) DeviceNames() string {
	var names []string
	for _, d := range i.Devices {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// SameComputer reports whether another member is a process of the same computer, as far as its name and addresses show.
func (i Info) SameComputer(other Info) bool {
	return i.Host == other.Host && i.System == other.System && slices.Equal(i.hosts(), other.hosts())
}

// hosts are the addresses without their ports.
func (i Info) hosts() (all []string) {
	for _, a := range i.Addresses {
		if host, _, err := net.SplitHostPort(a); err == nil {
			all = append(all, host)
		}
	}
	return all
}
