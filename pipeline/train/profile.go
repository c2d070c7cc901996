package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// The files of a profile in the run folder.
const (
	profileFile = "profile.json"
	profilePage = "profile.html"
)

// ProfileOptions make a run measure the kernels of a few steps. What it computes stays the same to the last bit.
type ProfileOptions struct {
	Peak func(device.Device) (profile.Peak, error) // the peak performance of a device; nil: not measured
	Done func(*profile.Profile)                    // called when the files are written; nil: not called
}

const (
	profileAfter = 3 // steps: by then, kernels are compiled and buffers allocated
	profileSteps = 2
	profileLag   = 3 // batches after which all ranks have reported one: updates come up to two batches later
)

// profiling collects what ranks report of some batches.
type profiling struct {
	job      *job
	from, to int // batches
	peaks    map[device.Info]profile.Peak
	page     string // its path, when it is written

	mu      sync.Mutex
	names   []string // of ranks
	ranks   []*profile.Recorder
	batches map[int]bool
	untimed error
	written bool
}

// newProfiling chooses the steps to measure: a few after the first, or the last ones. It measures the devices' peaks
// first, while they are idle, and takes the peaks that a profiling before has measured.
func newProfiling(j *job, step int, ranks []engine.RankPlan, devices []device.Device, before *profiling) (*profiling, error) {
	steps, o := j.config.Train.Steps, j.options.Profile
	from := min(step+profileAfter, max(step, steps-profileSteps))
	p := &profiling{job: j, from: from, to: min(from+profileSteps, steps), batches: map[int]bool{}, peaks: map[device.Info]profile.Peak{}}
	if before != nil {
		p.peaks = before.peaks
	}
	for i, r := range ranks {
		peak, known := p.peaks[r.Device]
		if !known && o.Peak != nil {
			j.options.Report.Measuring(r.Device.Name, "its peak")
			var err error
			if peak, err = o.Peak(devices[i]); err != nil {
				return nil, fmt.Errorf("profile: the peak of %s: %w", r.Device.Name, err)
			}
			p.peaks[r.Device] = peak
		}
		p.names = append(p.names, r.Name)
		p.ranks = append(p.ranks, profile.NewRecorder(r.Name, r.Device, peak))
	}
	return p, nil
}

// Wants implements engine.Profiler.
func (p *profiling) Wants(batch int) bool { return p.from <= batch && batch < p.to }

// Ran implements engine.Profiler.
func (p *profiling) Ran(rank, batch int, what string, kernels []exec.KernelInfo, t exec.Times) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batches[batch] = true
	p.ranks[rank].Add(what, kernels, t)
}

// Untimed implements engine.Profiler.
func (p *profiling) Untimed(rank int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.untimed == nil {
		p.untimed = fmt.Errorf("%s: %w", p.names[rank], err)
	}
}

// write writes the profile once it is complete: when a later batch is done, or after the last one.
func (p *profiling) write(batch int, last bool) error {
	if p == nil || p.written || !last && batch < p.to-1+profileLag {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = true
	note, dir := p.job.options.Report.Note, p.job.config.Run.Dir
	if p.untimed != nil {
		note("profile: %v", p.untimed)
	}
	if len(p.batches) == 0 {
		if p.untimed == nil {
			note("profile: no step was measured")
		}
		return nil
	}
	out := &profile.Profile{Title: "gpupipe " + dir, Time: time.Now(), Steps: len(p.batches)}
	for _, r := range p.ranks {
		out.Ranks = append(out.Ranks, r.Rank())
	}
	var err error
	if p.page, err = WriteProfile(dir, out); err != nil {
		return usererror.New(err)
	}
	if done := p.job.options.Profile.Done; done != nil {
		done(out)
	}
	return nil
}

// pagePath is the path of the page, or "" if none is written.
func (p *profiling) pagePath() string {
	if p == nil {
		return ""
	}
	return p.page
}

// WriteProfile writes a profile as data and as a page into a folder, which it creates if needed. It returns the path of
// the page.
func WriteProfile(dir string, p *profile.Profile) (page string, err error) {
	page = filepath.Join(dir, profilePage)
	err = errors.Join(os.MkdirAll(dir, 0o777), jsonfile.Write(filepath.Join(dir, profileFile), p, " "), atomicfile.Write(page, p.HTML))
	if err != nil {
		return "", fmt.Errorf("profile: %w", err)
	}
	return page, nil
}
