package hooks

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
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Model returns the config's model, which the build_model module builds if there is one. It is ready for microbatches
// of batch sequences; other sizes are built on demand.
func (s *Set) Model(c config.Model, batch int) (model.Model, error) {
	m := s.model
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

// ModelModule is the module that builds the model, as checkpoints and exports store it.
type ModelModule struct{ *module }

// ModelModule returns the module that builds the model; ok is false without one. A nil Set has none.
func (s *Set) ModelModule() (m ModelModule, ok bool) {
	if s == nil || s.model == nil {
		return ModelModule{}, false
	}
	return ModelModule{s.model}, true
}

// GraphKinds are the hooks whose modules build graphs.
func GraphKinds() []string { return []string{hook.BuildModel, hook.BuildLoss} }

// GraphModules returns, by file name, the contents of the modules that build the model or the loss.
func (s *Set) GraphModules() (map[string][]byte, error) {
	contents := map[string][]byte{}
	for _, m := range []*module{s.model, s.loss} {
		switch {
		case m == nil:
		case m.content != nil:
			contents[m.config.File] = m.content
		default:
			content, err := hook.ReadFile(m.config.File)
			if err != nil {
				return nil, fmt.Errorf("hook %s: %w", m.config.File, err)
			}
			contents[m.config.File] = content
		}
	}
	return contents, nil
}

// Content is the module's file.
func (m ModelModule) Content() []byte { return m.content }

// JSON is config.json of the model, of the given size, with weights of the given dtype.
func (m ModelModule) JSON(size model.Size, dtype string) []byte {
	return m.config.ModelJSON(size, m.SHA256, dtype)
}

// SavedModules returns, by file name, the modules that build the model and whose files are missing, from the run's
// latest checkpoint.
func SavedModules(configs []config.Hook, run string, note func(format string, args ...any)) map[string][]byte {
	saved := map[string][]byte{}
	for _, c := range configs {
		if _, err := os.Stat(c.File); c.Hook != hook.BuildModel || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		latest, _, err := checkpoint.Latest(run)
		if err != nil {
			continue // Open reports the missing file
		}
		if content, err := latest.File(config.ModuleFile); err == nil {
			saved[c.File] = content
			note("%s is missing: using the module kept in %s", c.File, latest.Dir)
		}
	}
	return saved
}

// OpenModel loads the module saved in a checkpoint's or export's folder and builds its model.
func OpenModel(saved *config.HookModel, dir string) (*Set, model.Model, error) {
	c, err := saved.Hook(dir)
	if err != nil {
		return nil, nil, err
	}
	s, err := Open([]config.Hook{c}, Options{})
	if err != nil {
		return nil, nil, err
	}
	if found := s.model.SHA256; found != saved.Module.SHA256 {
		return nil, nil, errors.Join(fmt.Errorf("%s: module.sha256: found %s, but %s has %s",
			filepath.Join(dir, "config.json"), saved.Module.SHA256, c.File, found), s.Close())
	}
	m, err := s.Model(saved.Model(), 1)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, m, nil
}
