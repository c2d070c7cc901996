package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// model is what a config describes or, where a hook writes it, what the hook wrote, for microbatches of some sequences among others.
func (h *hooks) model(c config.Model, batch int) (model.Model, error) {
	m := h.modelHook()
	if m == nil {
		return c.Config, nil
	}
	w, err := model.NewWritten(c.VocabSize, c.SeqLen, func(batch int) (*model.Draft, error) {
		return m.BuildModel(context.Background(), graphhook.Dims{Batch: batch, SeqLen: c.SeqLen, Vocab: c.VocabSize})
	})
	if err == nil {
		err = w.Prepare(batch)
	}
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = fmt.Errorf("hook %s: %s: %w", m.config.File, hook.BuildModel, err)
	}
	return w, usererror.New(err)
}

// openModel is the model of a config, for its microbatches, its pipeline and in its precision.
func openModel(c config.Config, h *hooks) (model.Model, error) {
	m, err := h.model(c.Model, c.Rows())
	if err == nil {
		err = usererror.New(c.Pipeline.CheckUnits(m))
	}
	if err != nil {
		return nil, err
	}
	return layout.InPrecision(c, m)
}

// modelHook is the module that writes the model; nil: none does.
func (h *hooks) modelHook() *loadedHook {
	if ms := h.of(hook.BuildModel); len(ms) > 0 {
		return ms[0]
	}
	return nil
}

// savedModules maps the file of a hook that builds the model to its contents in the run's latest checkpoint, if the
// file itself is missing.
func savedModules(configs []config.Hook, run string, note func(format string, args ...any)) map[string][]byte {
	saved := map[string][]byte{}
	for _, c := range configs {
		if _, err := os.Stat(c.File); c.Hook != hook.BuildModel || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		latest, _, err := checkpoint.Latest(run)
		if err != nil {
			continue // openHooks reports the missing file
		}
		if module, err := latest.File(config.ModuleFile); err == nil {
			saved[c.File] = module
			note("%s is missing: using the module kept in %s", c.File, latest.Dir)
		}
	}
	return saved
}

// openHookModel has the module in a folder build the model.
func openHookModel(saved *config.HookModel, dir string) (*hooks, model.Model, error) {
	c, err := saved.Hook(dir)
	if err != nil {
		return nil, nil, err
	}
	h, err := openHooks([]config.Hook{c}, nil, "", hook.BuildModel)
	if err != nil {
		return nil, nil, err
	}
	if got := h.modelHook().SHA256; got != saved.Module.SHA256 {
		return nil, nil, errors.Join(fmt.Errorf("%s: module.sha256: found %s, but %s has %s",
			filepath.Join(dir, "config.json"), saved.Module.SHA256, c.File, got), h.close())
	}
	m, err := h.model(saved.Model(), 1)
	if err != nil {
		return nil, nil, errors.Join(err, h.close())
	}
	return h, m, nil
}
