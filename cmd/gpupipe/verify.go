package main

import (
	"errors"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/runs/verify"
)

type verifyCommand struct {
	Device  []string `help:"Device to verify: cpu:0, webgpu:0, vulkan:0. Repeatable: stages use the devices in turn." placeholder:"NAME" sep:"none"`
	Quick   bool     `help:"Run fewer cases, of 10 batches."`
	Batches int      `help:"Batches in each run; 0: 20, or 10 with --quick." default:"0"`
	Filter  string   `help:"Run only cases whose name or claim contains this." placeholder:"TEXT"`
	JSON    bool     `help:"Print a JSON object."`
}

func (c *verifyCommand) Help() string {
	return `Trains a tiny model many times, on one device and on pipelines of up to five stages, with every schedule, and compares the
checkpoints bit by bit: losses, weights, pending updates and the optimizer's state. A device named once serves all stages of a pipeline.
For a difference, prints the first batch, tensor and element that differ. Devices of several kinds round differently: each kind is verified
by itself, and pipelines of all of them within rounding. Pipelines whose tensors are rounded between stages, as by pipeline.wire, are
compared with each other.

All runs use the default kernels, as with train --no-tune, since they are compared bit by bit. selftest checks each kernel. Exits with 1 if
a case fails.

Examples:
  gpupipe verify
  gpupipe verify --quick
  gpupipe verify --device webgpu:0 --device webgpu:1 --json
  gpupipe verify --filter resumed`
}

var errVerify = errors.New("a pipeline of these devices computes wrong results: update their drivers, and run selftest on each")

func (c *verifyCommand) Run(a *app) error {
	if c.Batches != 0 && (c.Batches < 6 || c.Batches > 10000) {
		return usererror.Errorf("--batches: found %d, expected an integer from 6 to 10000, or 0", c.Batches)
	}
	if len(c.Device) == 0 {
		d, err := a.defaultDevice()
		if err != nil {
			return usererror.New(err)
		}
		c.Device = []string{d.Name}
	}
	s := &status{app: a, silent: c.JSON}
	r, err := verify.Run(a.ctx, verify.Options{Devices: c.Device, OpenDevice: a.openDevice, OpenWorker: a.workers(), Quick: c.Quick,
		Batches: c.Batches, Filter: c.Filter,
		Progress: func(done, total int, name string) { s.say("%d of %d: %s", done+1, total, name) }})
	s.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		err = a.printJSON(r)
	} else {
		printVerification(a, r)
	}
	if err == nil && !r.OK {
		err = errVerify
	}
	return err
}

func printVerification(a *app, r verify.Report) {
	for _, d := range r.Devices {
		a.printf("%s  %s (%s) %s\n", d.Name, d.Hardware(), d.Kind, d.Driver)
	}
	if r.Mixed {
		a.prose("These devices are of several kinds: each is verified by itself. Pipelines of all of them agree within rounding.\n")
	}
	rows := [][]string{{"CASE", "COMPARED WITH", "", ""}}
	claim, failed := "", 0
	for _, c := range r.Cases {
		if heading := title(c); heading != claim {
			claim = heading
			rows = append(rows, []string{}, []string{heading})
		}
		if !c.OK() {
			failed++
		}
		rows = append(rows, []string{"  " + c.Name, c.Against, string(c.Verdict), c.Detail})
	}
	a.printf("\n")
	if a.width() > 0 && table.Total(rows) > a.width() {
		a.narrowCases(rows[1:])
	} else {
		a.table(rows)
	}
	a.printf("\n")
	for _, c := range r.Cases {
		if c.Difference != nil {
			a.printf("%s: %v\n", c.Name, c.Difference)
		}
	}
	if failed == 0 {
		a.printf("All %d cases of %d batches passed.\n", len(r.Cases), r.Batches)
	} else {
		a.printf("%d of %d cases failed.\n", failed, len(r.Cases))
	}
}

// narrowCases prints the rows of cases for a terminal that is too narrow for a table.
func (a *app) narrowCases(rows [][]string) {
	for _, row := range rows {
		if len(row) < 4 {
			a.prose(strings.Join(row, "") + "\n")
			continue
		}
		text := strings.TrimSpace(row[0]) + "; compared with " + row[1]
		if row[3] != "" {
			text += "; " + row[3]
		}
		a.labeled("  "+row[2], text)
	}
}

// title is the heading of the cases of a claim on one kind of device.
func title(c verify.Case) string {
	if c.Device == "" {
		return c.Claim
	}
	return c.Device + ": " + c.Claim
}
