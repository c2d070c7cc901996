// Package profile reports where the time of programs goes, by kernel, layer and program, beside the measured peaks of
// the device. A Recorder per rank adds up measured runs; Print and HTML write the profile.
package profile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Peak is the measured peak of a device: multiplications and additions of f32 in registers, and reading, copying or
// adding arrays larger than caches. Zero means not measured.
type Peak struct {
	GFLOPS float64 `json:"gflops"`   // 1e9 per second
	GBps   float64 `json:"gb_per_s"` // 1e9 bytes read and written per second
}

// Profile is the time of steps on one or several ranks.
type Profile struct {
	Title string    `json:"title"`
	Time  time.Time `json:"time"`
	Steps int       `json:"steps"` // measured steps; all other numbers are sums over them
	Ranks []Rank    `json:"ranks"`
}

// Rank is the profile of one rank.
type Rank struct {
	Name           string      `json:"name"` // "stage 0"
	Device         device.Info `json:"device"`
	Peak           Peak        `json:"peak"`
	DurationMicros float64     `json:"micros"` // sum of the kernels and copies on the device's clock; the host's clock shows more
	Copies         float64     `json:"copy_micros"`
	Programs       []Sum       `json:"programs"` // in the order of their first runs
	Phases         []Sum       `json:"phases"`
	Layers         []Layer     `json:"layers"` // in the model's order
	Kernels        []Kernel    `json:"kernels"`
}

// Sum is the time of several kernels.
type Sum struct {
	Name           string  `json:"name"`
	Calls          int     `json:"calls,omitempty"` // of a program
	DurationMicros float64 `json:"micros"`
	Share          float64 `json:"share"` // of the rank's time
}

// Layer is the time of one layer of the model.
type Layer struct {
	Name           string  `json:"name"`
	DurationMicros float64 `json:"micros"`
	Phases         []Sum   `json:"phases"`
}

// Kernel is the sum over all calls of one kernel of a program.
type Kernel struct {
	Program        string  `json:"program"`
	Layer          string  `json:"layer,omitempty"`
	Phase          string  `json:"phase"`
	Label          string  `json:"label"`
	Candidate      string  `json:"candidate"`
	Flops          float64 `json:"flops,omitempty"` // per call
	Bytes          int64   `json:"bytes"`           // per call, that must be read and written
	Calls          int     `json:"calls"`
	DurationMicros float64 `json:"micros"`
	Share          float64 `json:"share"` // of the rank's time
	GFLOPS         float64 `json:"gflops,omitempty"`
	GBps           float64 `json:"gb_per_s,omitempty"`
	OfPeak         float64 `json:"of_peak,omitempty"` // the larger of its shares of the two peaks
	Bound          string  `json:"bound,omitempty"`   // the peak of that share: "compute" or "memory"
}

// The phases of kernels.
const (
	Forward   = "forward"
	Backward  = "backward"
	Weights   = "weights" // gradients of the weights
	Optimizer = "optimizer"
	Copies    = "copies"
)

// phases are in the order of display.
var phases = []string{Forward, Backward, Weights, Optimizer, Copies}

// optim is the prefix of the optimizer's scopes.
const optim = "optim "

// place returns the layer and the phase of a kernel from its scope: "layers.3", "layers.3 backward", "optim layers.3".
func place(scope string) (layer, phase string) {
	if layer, ok := strings.CutPrefix(scope, optim); ok {
		return layer, Optimizer
	}
	for _, phase := range []string{Backward, Weights} {
		if layer, ok := strings.CutSuffix(scope, " "+phase); ok {
			return layer, phase
		}
	}
	return scope, Forward
}

// Recorder adds up the measurements of one rank.
type Recorder struct {
	rank     Rank
	kernels  map[key]*Kernel
	programs map[string]*Sum
	order    []string // of layers
}

// key identifies kernels: equal kernels of a layer are one entry.
type key struct {
	program, label, candidate string
	flops                     float64
	bytes                     int64
}

// NewRecorder returns an empty recorder of a rank.
func NewRecorder(name string, dev device.Info, peak Peak) *Recorder {
	return &Recorder{rank: Rank{Name: name, Device: dev, Peak: peak}, kernels: map[key]*Kernel{}, programs: map[string]*Sum{}}
}

// Add adds one run of a program. kernels are in the order of its plan.
func (r *Recorder) Add(program string, kernels []exec.KernelInfo, t exec.Times) {
	if r.programs[program] == nil {
		r.programs[program] = &Sum{Name: program}
		r.rank.Programs = append(r.rank.Programs, Sum{Name: program})
	}
	r.programs[program].Calls++
	r.programs[program].DurationMicros += inMicros(t.Total())
	r.rank.Copies += inMicros(t.Copies)
	for i, info := range kernels {
		k := key{program, info.Label, info.Candidate, info.Flops, info.Bytes}
		if r.kernels[k] == nil {
			layer, phase := place(info.Scope)
			if !slices.Contains(r.order, layer) {
				r.order = append(r.order, layer)
			}
			r.kernels[k] = &Kernel{Program: program, Layer: layer, Phase: phase, Label: info.Label, Candidate: info.Candidate,
				Flops: info.Flops, Bytes: info.Bytes}
		}
		r.kernels[k].Calls++
		r.kernels[k].DurationMicros += inMicros(t.Kernels[i])
	}
}

func inMicros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Rank returns the profile so far.
func (r *Recorder) Rank() Rank {
	l := r.rank
	l.DurationMicros, l.Programs, l.Kernels = 0, nil, nil
	for _, p := range r.rank.Programs {
		l.Programs = append(l.Programs, *r.programs[p.Name])
		l.DurationMicros += r.programs[p.Name].DurationMicros
	}
	for i := range l.Programs {
		l.Programs[i].Share = share(l.Programs[i].DurationMicros, l.DurationMicros)
	}
	for _, k := range r.kernels {
		k := *k
		k.rate(l)
		l.Kernels = append(l.Kernels, k)
	}
	sortKernels(l.Kernels)
	l.Phases = sums(l.Kernels, l.Copies, l.DurationMicros)
	l.Layers = r.layers(l.Kernels)
	return l
}

func sortKernels(ks []Kernel) {
	slices.SortFunc(ks, func(a, b Kernel) int {
		return cmp.Or(cmp.Compare(b.DurationMicros, a.DurationMicros), cmp.Compare(a.Program, b.Program), cmp.Compare(a.Label, b.Label),
			cmp.Compare(a.Flops, b.Flops), cmp.Compare(a.Bytes, b.Bytes))
	})
}

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// rate sets what follows from the kernel's time.
func (k *Kernel) rate(l Rank) {
	k.Share = share(k.DurationMicros, l.DurationMicros)
	k.GFLOPS, k.GBps = share(k.Flops*float64(k.Calls), 1e3*k.DurationMicros), share(float64(k.Bytes)*float64(k.Calls), 1e3*k.DurationMicros)
	k.OfPeak, k.Bound = l.Peak.Share(k.GFLOPS, k.GBps)
}

// Share returns the larger of the shares of the two peaks, and the name of that peak, which bounds the kernel. A rate
// far above a peak has no share of it: the data come from caches, or units for matrices compute.
func (p Peak) Share(gflops, gbps float64) (of float64, bound string) {
	compute, memory := below(share(gflops, p.GFLOPS)), below(share(gbps, p.GBps))
	switch {
	case compute == 0 && memory == 0:
		return 0, ""
	case compute >= memory:
		return compute, "compute"
	}
	return memory, "memory"
}

// below returns a share of at most 1, to which it cuts the noise of a measurement; 0 if x is no share.
func below(x float64) float64 {
	if x > 1.15 {
		return 0
	}
	return min(x, 1)
}

// sums returns the times of phases.
func sums(ks []Kernel, copies, whole float64) (out []Sum) {
	time := map[string]float64{Copies: copies}
	for _, k := range ks {
		time[k.Phase] += k.DurationMicros
	}
	for _, p := range phases {
		if time[p] > 0 {
			out = append(out, Sum{Name: p, DurationMicros: time[p], Share: share(time[p], whole)})
		}
	}
	return out
}

// layers returns the layers in the order in which they first ran, which is the model's.
func (r *Recorder) layers(ks []Kernel) (out []Layer) {
	for _, name := range r.order {
		of := slices.DeleteFunc(slices.Clone(ks), func(k Kernel) bool { return k.Layer != name })
		l := Layer{Name: name}
		for _, k := range of {
			l.DurationMicros += k.DurationMicros
		}
		l.Phases = sums(of, 0, l.DurationMicros)
		out = append(out, l)
	}
	return out
}

// Alike joins equal kernels of different layers. Their labels have a star for the layer's number; shares and rates are
// taken over all together.
func (l Rank) Alike() []Kernel {
	found := map[key]*Kernel{}
	for _, k := range l.Kernels {
		k.Label, k.Layer = starred(k.Label), starred(k.Layer)
		at := key{k.Program, k.Label, k.Candidate, k.Flops, k.Bytes}
		if found[at] == nil {
			found[at] = &k
			continue
		}
		found[at].Calls += k.Calls
		found[at].DurationMicros += k.DurationMicros
	}
	var out []Kernel
	for _, k := range found {
		k.rate(l)
		out = append(out, *k)
	}
	sortKernels(out)
	return out
}

func starred(s string) string {
	before, after, ok := strings.Cut(s, "layers.")
	if !ok {
		return s
	}
	return before + "layers.*" + strings.TrimLeft(after, "0123456789")
}
