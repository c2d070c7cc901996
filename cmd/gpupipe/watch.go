package main

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/gpupipe/gpupipe/internal/httpserver"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/watch"
)

type watchCommand struct {
	Runs      []string `arg:"" optional:"" help:"Run folders, or folders that hold runs. Default: runs."`
	Listen    string   `help:"Address and port of the page; a port alone is on this computer only." default:"7480" placeholder:"HOST:PORT"`
	TokenFile string   `help:"File with the token that the page must have. Default: a new token, if other computers reach the page." type:"path" placeholder:"FILE"`
	Sample    string   `help:"Continue this text with the newest checkpoint of each run that is shown." placeholder:"TEXT"`
	Tokens    int      `help:"Number of tokens of a sample." default:"100" short:"n"`
	Device    string   `help:"Device for samples: cpu:0, webgpu:0, vulkan:0." placeholder:"NAME"`
	JSON      bool     `help:"Print the page's address as a JSON object."`
}

func (c *watchCommand) Help() string {
	return `Serves a page with the losses of runs, their learning rates, gradient norms, speed, memory and utilization, the newest batch of
their pipelines, samples and events, live while they train. It reads the files of run folders and writes nothing, so it also shows
finished runs and folders copied from another computer. Runs that begin later appear by themselves. Ctrl-C ends it.

The page is for this computer. To see it from another one, tunnel: ssh -L 7480:localhost:7480 THIS-COMPUTER. With --listen on a network
the address that is printed ends with a token, which the page needs; connections are not encrypted.

--sample shows how texts improve: each new checkpoint of a run that is shown continues the text, by this process and on its device. That
takes time from a run that trains on the same device.

Examples:
  gpupipe watch
  gpupipe watch runs/a runs/b
  gpupipe watch copied-from-a-server --listen 8000
  gpupipe watch runs/demo --sample "In the beginning" --device cpu:0`
}

func (c *watchCommand) Run(a *app) error {
	folders := c.Runs
	if len(folders) == 0 {
		folders = []string{"runs"}
	}
	if c.Tokens < 1 || c.Tokens > 1<<16 {
		return usererror.Errorf("--tokens: found %d, expected an integer from 1 to %d", c.Tokens, 1<<16)
	}
	token, err := c.token()
	if err != nil {
		return usererror.New(err)
	}
	for _, folder := range folders {
		if _, err := os.Stat(folder); err != nil {
			a.note("gpupipe: %s does not exist yet: its runs appear when it does", folder)
		}
	}
	w := watch.New(folders...)
	server, err := httpserver.Start(httpserver.Options{Address: c.Listen, Handler: w.Handler(), Token: token, Public: watch.Public})
	if err != nil {
		return usererror.New(err)
	}
	url := server.URL() + "/"
	if token != "" {
		url += "#" + token
	}
	if c.JSON {
		err = a.printJSON(event{"url": url})
	} else {
		a.printf("%s\n", url)
	}
	if err == nil {
		if c.Sample != "" {
			go w.Sample(a.ctx, func(ctx context.Context, dir string, step int) (string, error) { return c.sample(ctx, a, dir, step) })
		}
		w.Run(a.ctx)
	}
	if closed := server.Close(); err == nil {
		err = closed
	}
	return err
}

// token is the page's token; "" if only this computer reaches the page.
func (c *watchCommand) token() (string, error) {
	if c.TokenFile != "" {
		return httpserver.ReadToken(c.TokenFile)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", nil // a port, or an error that the server returns
	}
	if at, err := net.ResolveIPAddr("ip", host); host != "" && (err != nil || at.IP.IsLoopback()) {
		return "", nil
	}
	return httpserver.NewToken(), nil
}

// sample continues the text with a checkpoint of a run.
func (c *watchCommand) sample(ctx context.Context, a *app, dir string, step int) (string, error) {
	src, err := inference.OpenStep(dir, step, "")
	if err != nil {
		return "", err
	}
	g, err := inference.NewGenerator(src, inference.Target{Device: c.Device, Open: a.openDevice})
	if err != nil {
		return "", err
	}
	text := c.Sample
	_, err = g.Generate(ctx, []byte(c.Sample), c.Tokens, inference.Sampling{Temperature: 0.8, TopP: 1, Seed: 1}, func(part []byte) error {
		text += string(part)
		return nil
	})
	return text, errors.Join(err, g.Close())
}
