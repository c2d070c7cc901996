package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/httpserver"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/inference/serve"
)

type serveCommand struct {
	modelFlags
	Server serverFlags `embed:""`
	Name   string      `help:"Name of the model. Default: that of its folder." placeholder:"NAME"`
	Limits limitFlags  `embed:""`
	Device string      `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null." placeholder:"NAME"`
	JSON   bool        `help:"Print a JSON object when requests can come."`
}

// serverFlags say where requests come from.
type serverFlags struct {
	Listen    string   `help:"Address and port, or a port of 127.0.0.1. Other addresses than loopback need a token." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	TokenFile string   `help:"File with the token that requests must have. Default: none on loopback; else a new one, which is printed." placeholder:"FILE"`
	Host      []string `help:"Names under which a proxy forwards requests to a loopback address." placeholder:"NAME"`
	CORS      []string `name:"cors" help:"Origins of other pages that may ask and read answers, such as https://chat.example; * permits all." placeholder:"ORIGIN"`
}

// limitFlags bound texts and requests.
type limitFlags struct {
	Slots     int   `help:"Texts that are continued at once; further ones wait." default:"8"`
	Context   int   `help:"Tokens of a text, for which each slot has a cache. Default: the model's context, at most 4096." placeholder:"TOKENS"`
	MaxTokens int   `help:"Tokens that a request may ask for. Default: what fits the context." placeholder:"TOKENS"`
	Queue     int   `help:"Texts that may wait for a slot; further requests are refused with status 429." default:"512"`
	MaxBody   int64 `help:"Bytes of a request." default:"1048576" placeholder:"BYTES"`
	Clients   int   `help:"Connections at once; further ones wait." default:"256"`
}

func (c *serveCommand) Help() string {
	return `Answers OpenAI's API: /v1/completions, /v1/chat/completions (where the model has a chat template) and
/v1/models; at / is a page to talk to the model. Ctrl-C lets requests in progress end. docs/SERVING.md has the details.

Examples:
  gpupipe serve runs/demo
  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \
    -d '{"model": "demo", "prompt": "In the beginning", "max_tokens": 50}'
  gpupipe serve runs/demo --listen 0.0.0.0:8000 --token-file token`
}

// untilDone is how long the server waits for requests in progress when it closes. Clients that do not read are
// disconnected before.
const untilDone = 1000 * time.Hour

// defaultContext bounds the default of --context: the caches of long contexts take much memory.
const defaultContext = 4096

func (c *serveCommand) Run(a *app) error {
	if err := c.Limits.check(); err != nil {
		return usererror.New(err)
	}
	token, made, err := c.Server.token()
	if err != nil {
		return usererror.New(err)
	}
	src, err := c.open(a)
	if err != nil {
		return err
	}
	if _, cached := src.Cached(); cached && c.Limits.Context == 0 {
		c.Limits.Context = min(defaultContext, src.Model.Size().SeqLen)
	}
	b, err := inference.NewBatch(src, inference.Target{Device: c.Device, Open: a.openDevice}, c.Limits.Slots, c.Limits.Context)
	if err != nil {
		return err
	}
	return errors.Join(c.serve(a, b, token, made), b.Close())
}

func (c *limitFlags) check() error {
	for _, n := range []struct {
		flag          string
		value, lowest int64
		highest       int64
	}{{"slots", int64(c.Slots), 1, 1 << 12}, {"context", int64(c.Context), 0, 1 << 24}, {"max-tokens", int64(c.MaxTokens), 0, 1 << 24},
		{"queue", int64(c.Queue), 1, 1 << 20}, {"max-body", c.MaxBody, 1 << 10, 1 << 30}, {"clients", int64(c.Clients), 1, 1 << 16}} {
		if n.value < n.lowest || n.value > n.highest {
			return fmt.Errorf("--%s: found %d, expected an integer from %d to %d", n.flag, n.value, n.lowest, n.highest)
		}
	}
	return nil
}

// token returns the token that requests must have, and whether it is new.
func (c *serverFlags) token() (token string, made bool, err error) {
	if c.TokenFile != "" {
		token, err = httpserver.ReadToken(c.TokenFile)
		return token, false, err
	}
	local, err := httpserver.Loopback(c.Listen)
	if err != nil {
		return "", false, fmt.Errorf("--listen: %w", err)
	}
	if local {
		return "", false, nil
	}
	return httpserver.NewToken(), true, nil
}

func (c *serveCommand) serve(a *app, b *inference.Batch, token string, made bool) error {
	name := cmp.Or(c.Name, b.Source().Name())
	s, err := serve.New(b, serve.Options{Name: name, MaxTokens: c.Limits.MaxTokens, Queue: c.Limits.Queue})
	if err != nil {
		return usererror.New(err)
	}
	defer s.Close()
	h, err := httpserver.Start(httpserver.Options{Address: c.Server.Listen, Handler: s, Token: token, Public: serve.Public,
		Hosts: c.Server.Host, Origins: c.Server.CORS, Shutdown: untilDone, MaxBody: c.Limits.MaxBody, MaxConnections: c.Limits.Clients,
		Refuse: serve.Refuse})
	if err != nil {
		return usererror.Errorf("%s: %w", map[bool]string{true: "--cors", false: "--listen"}[strings.HasPrefix(err.Error(), "origin")], err)
	}
	c.announce(a, h.URL(), name, b, token, made)
	select {
	case <-a.ctx.Done():
		if n := s.Busy(); n > 0 {
			a.note("waits for %d texts in progress; Ctrl-C again quits at once", n)
		}
	case <-s.Done():
	}
	return errors.Join(s.Err(), h.Close())
}

// announce says where the server is. A new token is printed here and nowhere else.
func (c *serveCommand) announce(a *app, url, name string, b *inference.Batch, token string, made bool) {
	if !made {
		token = ""
	}
	if c.JSON {
		e := event{"url": url, "model": name, "slots": b.Slots(), "context": b.Context()}
		if made {
			e["token"] = token
		}
		_ = a.printJSON(e)
		return
	}
	rows := [][]string{{"model", name}, {"API", url + "/v1"}}
	page := url + "/"
	if made {
		rows, page = append(rows, []string{"token", token}), page+"#token="+token
	}
	a.facts(append(rows, []string{"page", page}, []string{"at once", fmt.Sprintf("%d texts of at most %s tokens", b.Slots(),
		grouped(int64(b.Context())))}))
}
