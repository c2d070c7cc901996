package measure

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
)

const (
	few      = 4    // bytes of a transfer whose time is only latency
	smallest = 4096 // bytes of a transfer that measures the bandwidth
)

// transfers measures transfers of n bytes between a device and its peers, unless the cache has them.
func (o Options) transfers(ctx context.Context, dev device.Device, n int64, peers []device.Device) (l partition.Link, cached bool,
	err error) {
	alignment, what := o.sharing(dev, peers), "a transfer"
	if alignment > 0 {
		what = "a shared transfer"
	}
	what = fmt.Sprintf("%s of %d bytes", what, n)
	key := o.Cache.key(dev, what)
	if e, ok := o.Cache.get(key); ok {
		return e.Link, true, nil
	}
	if alignment > 0 {
		l, err = shared(ctx, dev, n, alignment)
	}
	if alignment == 0 || refused(err) {
		l, err = staged(ctx, dev, n)
	}
	if err != nil {
		return l, false, fmt.Errorf("%s: %w", what, err)
	}
	o.Cache.put(key, dev, what, entry{Link: l})
	return l, false, nil
}

// sharing is the alignment of the host memory that a device shares with all of its peers; 0: it does not share memory
// with one of them.
func (o Options) sharing(dev device.Device, peers []device.Device) (alignment int64) {
	for _, p := range peers {
		a, share := device.Share(dev, p)
		if !share || o.Staged {
			return 0
		}
		alignment = max(alignment, a)
	}
	return alignment
}

// refused reports whether an error means that a driver refuses to import memory. The engine tolerates that.
func refused(err error) bool {
	return err != nil && !errors.Is(err, device.ErrLost) && !errors.Is(err, device.ErrClosed) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// staged measures a write and a read through the device's own staging buffers.
func staged(ctx context.Context, dev device.Device, n int64) (l partition.Link, err error) {
	b, err := dev.Alloc("transfer", n)
	if err != nil {
		return l, err
	}
	defer b.Release()
	data := make([]byte, n)
	return link(ctx, n, func(n int64) error {
		if err := dev.Write(b, 0, data[:n]); err != nil {
			return err
		}
		if err := dev.Sync(); err != nil {
			return err
		}
		p, err := dev.Read(b, 0, n)
		if err == nil {
			_, err = p.Wait()
		}
		return err
	})
}

// shared measures transfers to and from host memory that the device imports.
func shared(ctx context.Context, dev device.Device, n, alignment int64) (l partition.Link, err error) {
	b, err := dev.Alloc("transfer", n)
	if err != nil {
		return l, err
	}
	defer b.Release()
	m, err := host.Map((n+alignment-1)/alignment*alignment, alignment)
	if err != nil {
		return l, err
	}
	im := dev.(device.Importer)
	staging, err := im.Import("shared transfer", m.Bytes, m.Unmap)
	if err != nil {
		m.Unmap()
		return l, err
	}
	defer staging.Release()
	return link(ctx, n, func(n int64) error {
		here, there := device.Range{Buffer: b, Size: n}, device.Range{Buffer: staging, Size: n}
		for _, ends := range [][2]device.Range{{here, there}, {there, here}} {
			p, err := im.Transfer(ends[0], ends[1])
			if err == nil {
				_, err = p.Wait()
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// link measures the mean of both directions. move copies up to n bytes to the host and back and waits for both.
func link(ctx context.Context, n int64, move func(n int64) error) (l partition.Link, err error) {
	seconds := func(n int64) (float64, error) {
		d, err := best(ctx, func(repeat int) error {
			for range repeat {
				if err := move(n); err != nil {
					return err
				}
			}
			return nil
		})
		return d.Seconds() / 2, err
	}
	if l.Latency, err = seconds(few); err != nil {
		return l, err
	}
	all, err := seconds(n)
	if all > l.Latency {
		l.Bandwidth = float64(n-few) / (all - l.Latency)
	}
	return l, err
}
