package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

type hostCommand struct {
	Path   string   `arg:"" name:"config" hub:"config" help:"YAML file of the run, or the folder of a run to resume."`
	Set    []string `hub:"config" help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Resume bool     `help:"Continue from the newest valid checkpoint in run.dir."`
	fromFlag
	Device  []string      `help:"Device of this computer to compute on, repeatable; none: only members compute. Default: the default device." placeholder:"NAME" sep:"none"`
	Members int           `help:"Number of members to wait for." default:"1"`
	Wait    time.Duration `help:"Begin after this time with the members that there are, as in 60s. 0: wait for all." placeholder:"TIME"`
	Listen  string        `help:"Address and port where members join; the next two ports carry sessions and tensors." default:":7433" placeholder:"HOST:PORT"`
	Address []string      `help:"Name or address under which members reach this computer, repeatable. Default: those of its networks." placeholder:"HOST" sep:"none"`
	tokenFlags
	TokenFile string        `help:"Write the token to this file, which only this user may read, instead of printing it; the file is removed at the end." placeholder:"PATH"`
	Grace     time.Duration `help:"How long a member may be unreachable before it is lost." default:"12s"`
	Rejoin    time.Duration `help:"How long to wait for a lost member or another before the run goes on with the devices that are left." default:"30s"`
	uplinkFlag
	browserFlags
	JSON bool `help:"Print one JSON object a line: the token, the members, the start, each step, the result."`
}

func (c *hostCommand) Help() string {
	return `Prints a command with a token. Run on other computers, it makes them members: each device that a member offers is a stage of the
pipeline. This computer is a member too, unless --device none. Connections are encrypted; both sides prove who they are.

pipeline.stages is the number of devices unless the config sets it. pipeline.schedule: 2bw hides the latency of links; see gpupipe plan.
Devices of one kind give the bits of one computer.

A member that does not answer is lost after --grace. The run goes on from its newest checkpoint, on a spare device, on the member when it
is back, or, after --rejoin, on the devices that are left. Data, hooks on data, metrics and checkpoints are on this computer only.

SIGUSR1 saves a checkpoint after the current step, and the run goes on: kill -USR1 PID (not on Windows). Ctrl-C, SIGTERM and SIGHUP save and
stop the run; members end.

` + fromHelp + `
` + browserHelp + `
Examples:
  gpupipe host c.yaml
  gpupipe host c.yaml --members 3 --set pipeline.schedule=2bw
  gpupipe host c.yaml --wait 60s --device cpu:0
  gpupipe host runs/a --resume --address 192.0.2.7
  gpupipe host c.yaml --members 8 --device none --token-file /shared/token
  gpupipe host c.yaml --browser`
}

// streams says that the command fetches the training text by itself.
func (*hostCommand) streams() {}

// commits are those that a run which goes on has recorded.
func (c *hostCommand) commits() hub.Commits {
	t := c.asTrain()
	return t.commits()
}

func (c *hostCommand) Run(a *app) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	base, err := c.configure(c.Members+1, c.resumes())
	if err != nil {
		return err
	}
	from, err := c.checkpoint(c.asTrain())
	if err != nil {
		return err
	}
	r := newProgress(a, c.JSON)
	o := train.Options{Resume: c.resumes(), From: from, Plots: true, Devices: train.DeviceOptions{Open: a.openDevice},
		Report: r, Saves: &a.saves}
	if len(base.Hooks) > 0 {
		o.Hooks.Cache = a.hookCache()
	}
	ho := c.options(a, base, o.Hooks.Cache)
	if ho.Uplink, err = c.bytes(); err != nil {
		return err
	}
	if ho.Browser, err = c.browser(c.Listen); err != nil {
		return err
	}
	// Members get no token of a run that cannot begin.
	if o.Prepared.Folder, err = train.Reserve(base.Run.Dir, []string{clusterDir}, a.note); err != nil {
		return err
	}
	defer o.Prepared.Folder.Close()
	var local []string
	if ho.Local != nil {
		local = ho.Local.Devices
	}
	stopFetching, err := a.fetchText(&base, &o)
	if err != nil {
		return err
	}
	defer stopFetching()
	err = a.whileShown(r, func() (err error) {
		o.Prepared.Texts, err = train.Check(a.ctx, base, o, local)
		return err
	})
	if err != nil {
		return beforeStart(a, err)
	}
	defer func() { err = errors.Join(err, o.Prepared.Texts.Close()) }()
	h, err := coordinator.NewHost(a.ctx, ho)
	if err != nil {
		if errors.As(err, new(*coordinator.AddressError)) {
			err = fmt.Errorf("--listen: %w", err)
		}
		return usererror.New(err)
	}
	c.noteUnknown(a)
	defer func() { err = errors.Join(err, h.EndWith(ending(err))) }()
	if err := c.invite(a, h, ho.Browser); err != nil {
		return err
	}
	defer c.withdraw()
	if err := c.await(a, h); err != nil {
		return beforeStart(a, err)
	}
	c.noteSpares(a, h.Devices())
	var res train.Result
	err = a.whileShown(r, func() (err error) {
		res, err = h.Train(a.ctx, func(devices int, resumed bool) (config.Config, error) {
			next, err := c.configure(devices, resumed)
			next.Data.Train = base.Data.Train // with commits
			return next, err
		}, o)
		return err
	})
	if err != nil {
		return beforeStart(a, err)
	}
	return r.ended(res, "host")
}

// check refuses values of flags that make no sense.
func (c *hostCommand) check() error {
	if c.Members < 0 {
		return usererror.Errorf("--members: found %d, expected at least 0", c.Members)
	}
	for flag, d := range map[string]time.Duration{"--wait": c.Wait, "--grace": c.Grace, "--rejoin": c.Rejoin} {
		if d < 0 {
			return usererror.Errorf("%s: found %v, expected at least 0s", flag, d)
		}
	}
	return c.tokenFlags.check()
}

// noteUnknown notes which addresses of the token this computer cannot resolve. Members may know more names.
func (c *hostCommand) noteUnknown(a *app) {
	ctx, cancel := context.WithTimeout(a.ctx, 3*time.Second)
	defer cancel()
	for _, host := range c.Address {
		if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil && a.ctx.Err() == nil {
			a.note("--address %s: this computer does not find it; members may: %v", host, err)
		}
	}
}

// options returns the options for hosting the run, from the flags and the config base.
func (c *hostCommand) options(a *app, base config.Config, hookCache string) coordinator.HostOptions {
	costs := a.measuredCosts()
	o := coordinator.HostOptions{Dir: filepath.Join(base.Run.Dir, clusterDir), Address: c.Listen, Hosts: c.Address, Build: a.build,
		Token: identity.TokenOptions{Lifetime: c.Lifetime, SingleUse: c.SingleUse}, Grace: c.Grace, Rejoin: c.Rejoin, Note: a.note,
		OnMembers: func(members []coordinator.MemberState) { c.keep(a, base.Run.Dir, membersFile, members) },
		Measured:  func(m partition.Measured) { c.keep(a, base.Run.Dir, machinesFile, m) }}
	devices := c.Device
	switch {
	case len(devices) == 0:
		devices = base.Pipeline.Devices
		if len(devices) == 0 {
			devices = []string{""}
		}
	case len(devices) == 1 && devices[0] == "none":
		return o
	}
	o.Local = &member.ProcessOptions{Options: member.Options{OpenDevice: a.openDevice, Costs: costs, HookCache: hookCache, Note: a.note},
		Devices: devices}
	return o
}

// configure loads the config for a number of devices. Each device is a stage, as far as the model, the microbatches and
// the staleness of a resumed run allow. There are at most pipeline.stages stages, unless the config is from a run
// folder.
func (c *hostCommand) configure(devices int, resumed bool) (config.Config, error) {
	load := c.asTrain()
	withStages := func(n int, more ...string) (config.Config, error) {
		load.Set = slices.Concat(c.Set, []string{fmt.Sprint("pipeline.stages=", n), "pipeline.devices=[]"}, more)
		return load.load()
	}
	base, err := load.load()
	if err != nil { // it may be right with more stages than one
		var more error
		if base, more = withStages(max(1, devices)); more != nil {
			return base, err
		}
	}
	if base.Pipeline.Independent() { // replicas may be away, and each has the stages of the config
		return withStages(base.Pipeline.Stages)
	}
	stages := max(1, min(devices/base.Pipeline.Replicas, base.MicrobatchesPerReplica()))
	if given := base.Pipeline.Stages; given > 1 && !c.ofFolder() {
		stages = min(stages, given)
		if stages == given {
			return base, nil
		}
	}
	var saved *config.Config
	if resumed {
		if saved = savedIn(base.Run.Dir); saved == nil && c.ofFolder() { // the run branches off
			saved = savedIn(c.Path)
		}
	}
	var first error
	for ; stages >= 1; stages-- { // fewer if the model has fewer units
		found, err := withStages(stages)
		if err != nil && resumed { // a depth for more stages
			if shallow, other := withStages(stages, "pipeline.depth=0"); other == nil {
				found, err = shallow, nil
			}
		}
		if err == nil && saved != nil {
			_, err = found.KeepStale(*saved)
		}
		if err == nil {
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	return base, first
}

// asTrain is the command of this computer alone.
func (c *hostCommand) asTrain() trainCommand {
	return trainCommand{Path: c.Path, Set: c.Set, Resume: c.Resume, fromFlag: c.fromFlag}
}

// resumes reports whether the run continues from a checkpoint.
func (c *hostCommand) resumes() bool { return c.Resume || c.From != "" }

// ofFolder reports whether the config is from a run folder. Its number of stages follows from the devices that the run
// had, not from the user's wish.
func (c *hostCommand) ofFolder() bool {
	st, err := os.Stat(c.Path)
	return err == nil && st.IsDir() && !slices.ContainsFunc(c.Set, func(s string) bool { return strings.HasPrefix(s, "pipeline.stages=") })
}

// savedIn is the config of the run in a folder, or nil if none has begun.
func savedIn(dir string) *config.Config {
	path, err := configIn(dir)
	if err != nil {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	saved, err := config.ParseSaved(path, text)
	if err != nil {
		return nil // the run reports it
	}
	return &saved
}

// invite prints the command that makes another computer a member.
func (c *hostCommand) invite(a *app, h *coordinator.Host, page *coordinator.BrowserOptions) error {
	token := h.Token().Reveal()
	if c.TokenFile != "" {
		if err := writeToken(c.TokenFile, h.Token()); err != nil {
			return usererror.New(err)
		}
		token = "--token-file " + c.TokenFile
	}
	if c.JSON {
		e := event{"event": "token", "token": token}
		if c.TokenFile != "" {
			e = event{"event": "token", "file": c.TokenFile}
		}
		if page != nil {
			e["pages"] = c.pages(h, page)
		}
		return a.printJSON(e)
	}
	printInvitation(a, c.Lifetime, token)
	c.printPages(a, h, page)
	return nil
}

// withdraw removes the token's file: the token is of no use any more.
func (c *hostCommand) withdraw() {
	if c.TokenFile != "" {
		_ = os.Remove(c.TokenFile) // members do not take it for the token of another run
	}
}

// await waits for members.
func (c *hostCommand) await(a *app, h *coordinator.Host) error {
	ctx, cancel := a.ctx, func() {}
	if c.Wait > 0 {
		ctx, cancel = context.WithTimeout(a.ctx, c.Wait)
	}
	defer cancel()
	need := c.Members
	if h.Local() {
		need++
	}
	err := h.Wait(ctx, func(_, members int) bool { return members >= need })
	switch {
	case a.ctx.Err() != nil:
		return a.ctx.Err()
	case err != nil && h.Devices() == 0:
		return usererror.Errorf("no member joined within %v", c.Wait)
	}
	return nil
}

// noteSpares says which setting would give all devices a stage, if there are more than microbatches.
func (c *hostCommand) noteSpares(a *app, devices int) {
	found, err := c.configure(devices, c.resumes())
	if err != nil {
		return // the run reports it
	}
	p, most := found.Pipeline, found.MicrobatchesPerReplica()
	enough := devices
	for found.Train.BatchSize%enough != 0 && enough < found.Train.BatchSize {
		enough++
	}
	if p.Stages*p.Replicas < devices && p.Stages == most && enough > found.Train.Microbatches {
		a.note("train.microbatches: %d gives %d of %d devices a stage; the others are spares. To use all: --set train.microbatches=%d",
			found.Train.Microbatches, p.Stages*p.Replicas, devices, enough)
	}
}

type joinCommand struct {
	Token     string         `arg:"" optional:"" help:"The token that gpupipe host prints. Default: $GPUPIPE_TOKEN, or read from standard input."`
	TokenFile string         `help:"Read the token from this file, once gpupipe host --token-file has written it." placeholder:"PATH"`
	TokenWait *time.Duration `help:"How long to try while the coordinator does not answer, or the file of --token-file has no token of a run. Default: 30s; 10m with --token-file."`
	Device    []string       `help:"Device to offer, repeatable: cpu:0, webgpu:0, vulkan:0. Each is a stage. Default: the default device." placeholder:"NAME" sep:"none"`
	Name      string         `help:"Name to be known by. Default: the computer's." placeholder:"NAME"`
	Address   []string       `help:"Name or address under which other members reach this computer, repeatable. Default: those of its networks." placeholder:"HOST" sep:"none"`
	Port      int            `help:"Port for tensors. 0: any." default:"0"`
	uplinkFlag
}

func (c *joinCommand) Help() string {
	return `Joins the run of gpupipe host on another computer and computes for it until it ends. Needs no config, no data and no files: the
coordinator sends what is to be computed. WebAssembly modules of the run that build a model or a loss run in the sandbox.

Ctrl-C leaves the run, which goes on without this computer.

When the run ends, this command says why, and its exit code is that of gpupipe host: 0 if the run has finished, 130 if it was stopped there,
1 if it has diverged or failed, 2 if its input was refused. It is 1 if the coordinator is lost.

Examples:
  gpupipe join gp1.192.0.2.7:7433.…
  gpupipe join --device webgpu:0 --device webgpu:1 gp1.…
  GPUPIPE_TOKEN=gp1.… gpupipe join
  gpupipe join --token-file /shared/token`
}

func (c *joinCommand) Run(a *app) (err error) {
	devices := c.Device
	if len(devices) == 0 {
		devices = []string{""}
	}
	uplink, err := c.bytes()
	if err != nil {
		return err
	}
	if err := checkDevices(a, devices); err != nil { // a token may be of use once
		return err
	}
	joining := identity.JoinOptions{Name: c.Name, Build: a.build}
	if joining.Name == "" {
		joining.Name = hostName()
	}
	m, err := c.join(a, &joining)
	if err != nil {
		return err
	}
	p, err := member.Start(a.ctx, member.ProcessOptions{
		Options:     member.Options{OpenDevice: a.openDevice, Costs: a.measuredCosts(), HookCache: a.hookCache(), Note: a.note},
		Credentials: m.Credentials, Control: m.Control, Build: a.build, Devices: devices, Hosts: c.Address, Port: c.Port,
		Uplink: uplink,
		Renew:  func(ctx context.Context) error { return identity.Renew(ctx, m.Credentials, joining) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	a.note("joined as %s; Ctrl-C leaves", m.Credentials.Identity().ID)
	err = p.Wait(a.ctx)
	if a.ctx.Err() != nil {
		a.note("leaving the run")
		return errInterrupted
	}
	return ended(a, err)
}

// checkDevices refuses devices that cannot be opened.
func checkDevices(a *app, names []string) error {
	for _, name := range names {
		dev, err := a.openDevice(name)
		if err == nil {
			err = dev.Close()
		}
		if err != nil {
			return usererror.Errorf("--device: %w", err)
		}
	}
	return nil
}

// join joins the run of the token, which it adds to the options.
func (c *joinCommand) join(a *app, o *identity.JoinOptions) (m *identity.Membership, err error) {
	if c.TokenFile != "" {
		if c.Token != "" {
			return nil, usererror.Errorf("found a token and --token-file, expected one of them")
		}
		return joinWithin(a, c.wait(10*time.Minute), mayHaveTokenLater, func() (*identity.Membership,
			error) {
			return joinByFile(a, c.TokenFile, o)
		})
	}
	if o.Token, err = c.token(a); err != nil {
		return nil, err
	}
	a.note("joining the run at %s", strings.Join(o.Token.Addresses, ", "))
	return joinWithin(a, c.wait(30*time.Second), mayAnswerLater, func() (*identity.Membership, error) {
		return attempt(a, o.Token.Addresses, func() (*identity.Membership, error) { return identity.Join(a.ctx, *o) })
	})
}

func (c *joinCommand) wait(normal time.Duration) time.Duration {
	if c.TokenWait != nil {
		return *c.TokenWait
	}
	return normal
}

// token reads the token from the argument, the environment or standard input.
func (c *joinCommand) token(a *app) (identity.Token, error) {
	text := c.Token
	if text == "" {
		text = tokenFromElsewhere(a)
	}
	t, err := identity.ParseToken(strings.TrimSpace(text))
	return t, usererror.New(err)
}
