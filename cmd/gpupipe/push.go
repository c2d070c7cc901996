package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/hub/client"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/inference"
)

type pushCommand struct {
	modelFlags
	To      string `arg:"" name:"repository" help:"org/name on the Hugging Face Hub, with @branch or without; it is made if there is none."`
	DType   string `name:"dtype" help:"Number format to store: f32, bf16, f16." enum:"f32,bf16,f16" default:"f32"`
	License string `help:"License of the model, as the Hub writes it: apache-2.0, mit, cc-by-4.0. Default: the card names none." placeholder:"NAME"`
	Private bool   `help:"Make a new repository private."`
	Message string `help:"First line of the commit. Default: it names the run and the step." placeholder:"TEXT"`
	JSON    bool   `help:"Print a JSON object."`
}

func (c *pushCommand) Help() string {
	return `Exports a model as gpupipe export does and uploads it to the Hugging Face Hub as one commit, with a model card (README.md) that has
the settings that differ from the defaults, the losses and a plot of them. Names of local folders are not in the card. What the Hub has
already is not sent again. The token in HF_TOKEN, or of hf auth login, needs the right to write.

Examples:
  gpupipe push runs/demo me/demo --private
  gpupipe push runs/demo me/demo --step best --dtype bf16 --license apache-2.0
  gpupipe generate hf:me/demo --prompt "In the beginning"`
}

func (c *pushCommand) Run(a *app) error {
	n, ok, err := hub.Parse("hf:" + strings.TrimPrefix(c.To, "hf:"))
	if err == nil && (!ok || n.Kind != hub.Models || n.Path != "" || !strings.Contains(n.ID, "/")) {
		err = fmt.Errorf("%s: expected org/name, where org is your account or an organization", c.To)
	}
	if err == nil && hub.Offline() {
		err = errors.New("HF_HUB_OFFLINE is set: an upload needs the Hub")
	}
	if err != nil {
		return usererror.New(err)
	}
	step, err := c.number()
	if err != nil {
		return err
	}
	s := &status{app: a}
	defer s.clear()
	h, err := a.hub(s, "uploading", true)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.CheckToken(n); err != nil {
		return usererror.New(err)
	}
	dir, err := os.MkdirTemp("", "gpupipe-push-")
	if err != nil {
		return usererror.New(err)
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "model")
	p := newProgress(a, c.JSON)
	e, err := inference.Export(a.ctx, inference.ExportOptions{From: c.From, Step: step, Weights: c.Weights,
		Tokenizer: c.Tokenizer, DType: c.DType, Out: out, Progress: p.writing, Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	files, err := writeCard(n, c.License, e, out)
	if err != nil {
		return usererror.New(err)
	}
	address, err := c.upload(a, h, n, out, append(slices.Clone(e.Files), files...), e)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(map[string]any{"commit": address, "files": append(e.Files, files...)})
	}
	a.facts([][]string{{"model", n.Text()}, {"commit", address}, {"files", strings.Join(append(e.Files, files...), ", ")}})
	return nil
}

// upload makes a commit of files in a folder.
func (c *pushCommand) upload(a *app, h *client.Client, n hub.Name, dir string, files []string, e inference.Exported) (string, error) {
	var uploads []client.Upload
	for _, name := range files {
		uploads = append(uploads, client.Upload{Path: name, File: filepath.Join(dir, name)})
	}
	message := "Upload of a model with gpupipe"
	if e.Step != nil {
		message = fmt.Sprintf("Step %d of %s", *e.Step, filepath.Base(runOf(e.Model)))
	}
	address, err := h.Push(a.ctx, n, uploads, client.PushOptions{Message: cmp.Or(c.Message, message), Private: c.Private,
		Replaces: inference.IsWeights, Card: cardMark})
	if err != nil && a.ctx.Err() == nil {
		err = usererror.New(err)
	}
	return address, err
}
