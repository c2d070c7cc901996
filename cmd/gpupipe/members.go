package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
)

// Files of a run on several computers, in its folder.
const (
	clusterDir   = "cluster"
	membersFile  = clusterDir + "/members.json"  // describes its members
	machinesFile = clusterDir + "/machines.json" // the partition.Measured of those members
)

type membersCommand struct {
	Dir string `arg:"" name:"run" help:"Run folder of gpupipe host."`
	admissionFlags
	JSON bool `help:"Print a JSON object."`
}

func (c *membersCommand) Help() string {
	return `Shows the computers of a run, their devices, the ranks that they compute, their state, and the links between them: what was measured
before the run (bandwidth), and what they carry, as members report it every two seconds. After the run: their last state. Reads the run
folder, so it works on the computer of gpupipe host.

--expel, --revoke-tokens and --new-token change who may be a member, while the run goes on. A run that loses a member goes on from its newest
checkpoint. To keep someone out, expel the member and revoke the tokens: with a token, an expelled member may join again. --new-token then admits others.

Examples:
  gpupipe members runs/a
  gpupipe members runs/a --expel alice-1f2e3d4c --revoke-tokens
  gpupipe members runs/a --new-token --lifetime 10m --single-use`
}

func (c *membersCommand) Run(a *app) error {
	if c.any() {
		return c.change(a, c.Dir, c.JSON)
	}
	members, written, err := readMembers(c.Dir)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(event{"members": members, "written": written.UTC().Format(time.RFC3339)})
	}
	if len(members) == 0 {
		a.printf("no member has joined\n")
		return nil
	}
	a.printf("%s", stateOf(members, time.Since(written)))
	rows := [][]string{{"member", "computer", "devices", "ranks", "state"}}
	for _, m := range members {
		rows = append(rows, []string{m.ID, fmt.Sprintf("%s (%s)", m.Info.Host, m.Info.System), m.Info.DeviceNames(),
			strings.Trim(fmt.Sprint(m.Ranks), "[]"), m.State})
	}
	a.headed(rows)
	printLinks(a, members)
	return nil
}

// stale is the age of a state beyond which it is mentioned. The file is written every two seconds while a run trains.
const stale = 10 * time.Second

// stateOf says when the state of members is not the present one; otherwise it is empty.
func stateOf(members []coordinator.MemberState, age time.Duration) string {
	ago := age.Round(time.Second)
	switch {
	case members[0].State == coordinator.Ended:
		return fmt.Sprintf("the run ended %v ago; its members were:\n", ago)
	case age > stale:
		return fmt.Sprintf("the last known state, %v ago:\n", ago)
	}
	return ""
}

// readMembers reads the members of the run in a folder, and when they were written.
func readMembers(dir string) (members []coordinator.MemberState, written time.Time, err error) {
	path := filepath.Join(dir, membersFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, written, usererror.Errorf("%s: no such file, expected the folder of a run of gpupipe host", path)
	}
	if err != nil {
		return nil, written, usererror.New(err)
	}
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, written, usererror.Errorf("%s: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil {
		written = info.ModTime()
	}
	return members, written, nil
}

// printLinks prints the links of members: their measurements from before the run, and their traffic.
func printLinks(a *app, members []coordinator.MemberState) {
	rows := [][]string{{"link", "round trip", "bandwidth", "sent", "a message waits", "resent", "reconnects"}}
	for _, m := range members {
		for _, l := range m.Links {
			trip, rate := "unknown", "unknown"
			if l.RoundTrip > 0 {
				trip = inSeconds(l.RoundTrip)
			} else if l.Latency > 0 {
				trip = inSeconds(2 * l.Latency)
			}
			if l.Bandwidth > 0 {
				rate = coordinator.InBits(l.Bandwidth)
			}
			rows = append(rows, []string{m.ID + " to " + l.Peer, trip, rate, inBytes(l.Sent), inSeconds(l.MeanWait()),
				fmt.Sprint(l.Resent), fmt.Sprint(l.Reconnects)})
		}
	}
	if len(rows) > 1 {
		a.printf("\n")
		a.headed(rows)
	}
}

// keep keeps a value in the run folder as JSON. A failure ends no run.
func (c *hostCommand) keep(a *app, dir, file string, value any) {
	if err := jsonfile.Write(filepath.Join(dir, file), value, " "); err != nil {
		a.noteOnce(file, "gpupipe: %s is not kept: %v", file, err)
	}
}
