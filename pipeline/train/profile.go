package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// What a profile is kept in, in the run folder.
const (
	profileFile = "profile.json"
	profilePage = "profile.html"
)

// ProfileOptions have a run measure the kernels of a few steps. What it computes stays the same to the last bit.
type ProfileOptions struct {
	Peak func(device.Device) (profile.Peak, error) // what a device does at most; nil: not measured
	Done func(*profile.Profile)                    // told when the files are written; nil: nobody
}

const (
	profileAfter = 3 // steps: what is compiled and allocated on the way has been
	profileSteps = 2
	profileLag   = 3 // batches after which all lines have told of one: updates come up to two batches later
)

// profiling gathers what lines tell of some batches.
type profiling struct {
	*ProfileOptions
	from, to int // batches
	peaks    map[device.Info]profile.Peak

	mu      sync.Mutex
	names   []string
	lines   []*profile.Recorder
	batches map[int]bool
	untimed error
	written bool
}

// prepareProfile chooses the steps that are measured: a few after the first, or the last ones. Devices show their peak before they have
// anything else to do. Where devices are opened again, what was measured before is left out, unless that was all.
func (r *run) prepareProfile() error {
	if r.Profile == nil || r.profiling != nil && r.profiling.written {
		return nil
	}
	from := min(r.step+profileAfter, max(r.step, r.Train.Steps-profileSteps))
	p := &profiling{ProfileOptions: r.Profile, from: from, to: min(from+profileSteps, r.Train.Steps), batches: map[int]bool{}, peaks: map[device.Info]profile.Peak{}}
	if r.profiling != nil {
		p.peaks = r.profiling.peaks
	}
	for i, l := range r.engine.Ranks() {
		peak, known := p.peaks[l.Device]
		if !known && p.Peak != nil {
			r.Report.Measuring(l.Device.Name, "its peak")
			var err error
			if peak, err = p.Peak(r.devices[i]); err != nil {
				return fmt.Errorf("profile: the peak of %s: %w", l.Device.Name, err)
			}
			p.peaks[l.Device] = peak
		}
		p.names = append(p.names, l.Name)
		p.lines = append(p.lines, profile.NewRecorder(l.Name, l.Device, peak))
	}
	r.engine.Profile, r.profiling = p, p
	return nil
}

func (p *profiling) Wants(batch int) bool { return p.from <= batch && batch < p.to }

func (p *profiling) Ran(line, batch int, what string, kernels []exec.KernelInfo, t exec.Times) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batches[batch] = true
	p.lines[line].Add(what, kernels, t)
}

func (p *profiling) Untimed(line int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.untimed == nil {
		p.untimed = fmt.Errorf("%s: %w", p.names[line], err)
	}
}

// writeProfile writes what was measured once all of it is there: when a later batch is done, or when none follows.
func (r *run) writeProfile(batch int, last bool) error {
	p := r.profiling
	if p == nil || p.written || !last && batch < p.to-1+profileLag {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = true
	if p.untimed != nil {
		r.Report.Note("profile: %v", p.untimed)
	}
	if len(p.batches) == 0 {
		if p.untimed == nil {
			r.Report.Note("profile: no step was measured")
		}
		return nil
	}
	out := &profile.Profile{Title: "gpupipe " + r.Run.Dir, Time: time.Now(), Steps: len(p.batches)}
	for _, l := range p.lines {
		out.Ranks = append(out.Ranks, l.Rank())
	}
	page, err := WriteProfile(r.Run.Dir, out)
	if err != nil {
		return usererror.New(err)
	}
	r.result.Profile = page
	if p.Done != nil {
		p.Done(out)
	}
	return nil
}

// WriteProfile writes a profile as data and as a page into a folder, which is made if need be, and returns the page's path.
func WriteProfile(dir string, p *profile.Profile) (page string, err error) {
	page = filepath.Join(dir, profilePage)
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		panic(err) // names and finite numbers
	}
	err = errors.Join(os.MkdirAll(dir, 0o777), writeFile(filepath.Join(dir, profileFile), append(data, '\n')), atomicfile.Write(page, p.HTML))
	if err != nil {
		return "", fmt.Errorf("profile: %w", err)
	}
	return page, nil
}
