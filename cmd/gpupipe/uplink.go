package main

import "github.com/gpupipe/gpupipe/internal/usererror"

// uplinkFlag bounds what a process sends.
type uplinkFlag struct {
	Uplink string `help:"Send at most so much to other computers, as in 20Mbit: kbit, Mbit or Gbit a second. Default: no limit." placeholder:"RATE"`
}

// bytes is the bound in bytes a second; 0: there is none.
func (f uplinkFlag) bytes() (float64, error) {
	if f.Uplink == "" {
		return 0, nil
	}
	rate, err := parseRate(f.Uplink, ", as in 20Mbit")
	if err != nil {
		return 0, usererror.Errorf("--uplink: %w", err)
	}
	return rate, nil
}
