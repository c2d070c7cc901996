package main

import "github.com/gpupipe/gpupipe/runtime/tune"

// tuneFlag chooses when variants of kernels are timed.
type tuneFlag struct {
	Tune *bool `help:"Time the variants of each kernel before anything else, and use the fastest. --no-tune: time none, and use the default ones." negatable:""`
}

// tuneHelp explains the flag.
const tuneHelp = `Kernels have variants. Without --tune a run begins with those that were the fastest in earlier runs on this kind of device, or else with
the default ones. On a GPU it times the others between steps, in at most 2 % of the time. When all are timed, the next checkpoint names the
fastest, and they compute the steps from there on; later runs begin with them. On a CPU nothing is timed without --tune: the default ones
are as fast. Variants may round differently, so runs whose bits are compared use --no-tune. A resumed run goes on with the kernels of its
checkpoint, and with --no-tune keeps them.
`

// cache returns the user's cache of timed kernels as the flag says; nil for the default kernels.
func (f tuneFlag) cache(a *app, timing func(tune.Timing)) *tune.Cache {
	if f.Tune != nil && !*f.Tune {
		return nil
	}
	c := a.kernelChoices(timing)
	if f.Tune == nil {
		c.Postpone()
	}
	return c
}
