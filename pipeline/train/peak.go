package train

import (
	"context"

	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
)

// measurePeaks finds out what the devices can compute at most, once, while they are idle.
func (t *trainer) measurePeaks(context.Context) error {
	s, precision := t.deployment, t.job.config.Train.DType()
	if s.peaks != nil {
		return nil
	}
	s.peaks = make([]float64, len(s.ranks()))
	for i, r := range s.ranks() {
		s.peaks[i] = measure.PeakFLOPS(r.Device.Adapter, precision.Float16())
		if s.peaks[i] > 0 || t.job.options.Devices.Peak == nil || i >= len(s.devices) {
			continue
		}
		peak, err := t.job.options.Devices.Peak(s.devices[i])
		if err != nil {
			t.job.options.Report.Note("the peak of %s is not known, so there is no MFU: %v", r.Device.Name, err)
			continue
		}
		s.peaks[i] = peak
	}
	return nil
}

// peak is the peak of a rank's device in FLOP/s; 0: not known.
func (d *deployment) peak(rank int) float64 {
	if rank < len(d.peaks) {
		return d.peaks[rank]
	}
	return 0
}

// totalPeak is the peak of all devices together; 0 if one is not known. Ranks on one GPU share its peak. Ranks on a CPU
// have threads of their own.
func (d *deployment) totalPeak() (total float64) {
	type place struct{ member, device string }
	counted := map[place]bool{}
	for i, r := range d.ranks() {
		at := place{r.Member, r.Device.Name}
		if r.Device.Threads == 0 && counted[at] {
			continue
		}
		counted[at] = true
		if d.peak(i) == 0 {
			return 0
		}
		total += d.peak(i)
	}
	return total
}
