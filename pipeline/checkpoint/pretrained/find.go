// Package pretrained finds models that other programs saved, and reads their tensors under the names of this one.
//
// Find takes what users name, such as a folder of the Hub's cache, to a folder or GGUF file. Config reads the model's
// config, and Open its safetensors.
package pretrained

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/placeholder"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// ConfigFile is the name of a model's config in its folder.
const ConfigFile = "config.json"

// indexFile says which shard holds which tensor.
const indexFile = "model.safetensors.index.json"

// Expected is what Find takes, in words.
const Expected = "a GGUF file, or a folder with config.json and model.safetensors"

// Find returns the folder with config.json, or the GGUF file, of the model that a path names: the path itself, the
// snapshot of a folder in the Hub's cache, the only model in a folder, or a model of the Hub by its name in the cache.
// The error says what was found and what to do; expected is what the caller takes, such as Expected.
func Find(path, expected string) (string, error) {
	found, err := find(path)
	if errors.Is(err, errNoModel) {
		return "", fmt.Errorf("%w: expected %s", err, expected)
	}
	return found, err
}

// errNoModel is the error of a folder or file in which nothing is like a model.
var errNoModel = errors.New("no model here")

func find(name string) (string, error) {
	path, err := hub.Locate(name)
	if err != nil {
		return "", err
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case st.IsDir():
		return inFolder(path)
	case gguf.IsFile(path):
		return path, nil
	}
	if err := placeholder.CheckFile(path); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if filepath.Ext(path) == ".safetensors" {
		return "", fmt.Errorf("%s: found tensors without their config: name the folder, which has config.json too", path)
	}
	if isPickle(filepath.Base(path)) {
		return "", fmt.Errorf("%s: %s", path, pickleAdvice)
	}
	return "", fmt.Errorf("%s: a file that is not GGUF: %w", path, errNoModel)
}

// inFolder finds the model in a folder.
func inFolder(dir string) (string, error) {
	if present(dir, "adapter_config.json") && !hasWeights(dir) {
		return "", fmt.Errorf("%s: found a PEFT adapter (adapter_config.json), expected a whole model: merge it into its base model with "+
			"merge_and_unload() and save_pretrained() of PEFT", dir)
	}
	if present(dir, ConfigFile) {
		return dir, checkWeights(dir)
	}
	models, err := modelsIn(dir)
	switch {
	case err != nil:
		return "", err
	case len(models) == 1 && gguf.IsFile(models[0]):
		return models[0], nil
	case len(models) > 0:
		return "", fmt.Errorf("%s: no config.json here, but models below: name one, such as %s", dir,
			strings.Join(models[:min(len(models), 5)], ", "))
	case hasWeights(dir):
		return "", fmt.Errorf("%s: found model.safetensors without config.json, expected both", dir)
	}
	return "", fmt.Errorf("%s: found %s: %w", dir, hub.Contents(dir), errNoModel)
}

// present reports whether a folder has an entry, be it a link to nothing.
func present(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// hasWeights reports whether a folder has safetensors under the names that transformers gives them.
func hasWeights(dir string) bool {
	return present(dir, "model.safetensors") || present(dir, indexFile)
}

// modelsIn lists the GGUF files in a folder, and the folders with config.json in it and in the folders that it has. Of
// a GGUF file in parts it lists the first.
func modelsIn(dir string) (models []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if at, _, split := gguf.PartName(path); split && at != 1 {
			continue
		}
		if gguf.IsFile(path) {
			models = append(models, path)
		}
	}
	for _, pattern := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(userpath.Literal(dir), pattern, ConfigFile))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			models = append(models, filepath.Dir(f))
		}
	}
	return models, nil
}

// pickleAdvice is what to do with pickles.
const pickleAdvice = "found a pickle of PyTorch, which gpupipe does not read, since reading one runs code. Convert it with Python: " +
	"AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW), and name the new folder"

// isPickle reports whether a file's name is one that PyTorch's pickles have.
func isPickle(name string) bool {
	return slices.Contains([]string{".bin", ".pt", ".pth", ".ckpt"}, filepath.Ext(name))
}

// checkWeights refuses a folder with config.json whose weights are there in a form that gpupipe does not read.
func checkWeights(dir string) error {
	for _, name := range []string{"model.safetensors", indexFile} {
		if to, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s: a symbolic link to %s, which is not there: the download did not finish, or the folder was moved without its blobs: %s",
					filepath.Join(dir, name), to, hub.Advice(dir))
			}
		}
	}
	switch {
	case present(dir, "model.safetensors"):
		return nil
	case present(dir, indexFile):
		return checkShards(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var tensors, pickles []string
	for _, e := range entries {
		switch name := e.Name(); {
		case filepath.Ext(name) == ".safetensors":
			tensors = append(tensors, name)
		case isPickle(name) && !strings.HasPrefix(name, "training_args") && !strings.HasPrefix(name, "optimizer") &&
			!strings.HasPrefix(name, "scheduler"):
			pickles = append(pickles, name)
		}
	}
	switch {
	case len(tensors) > 1 && strings.HasPrefix(tensors[0], "model-0"):
		return fmt.Errorf("%s: found the shards %s to %s without %s, which says what they hold: download it too", dir, tensors[0],
			tensors[len(tensors)-1], indexFile)
	case len(tensors) > 0:
		return fmt.Errorf("%s: found %s, expected model.safetensors or %s", dir, strings.Join(tensors, ", "), indexFile)
	case len(pickles) > 0:
		return fmt.Errorf("%s: %s", filepath.Join(dir, pickles[0]), pickleAdvice)
	}
	return nil // Open reports that there are none: plans and configs need none
}

// noWeights is the error of a folder without weights.
func noWeights(dir string) error {
	return fmt.Errorf("%s: found %s, and no weights: expected model.safetensors, or shards with %s: %s", dir, hub.Contents(dir),
		indexFile, hub.Advice(dir))
}

// checkShards refuses a folder in which shards are missing. Opening the tensors reports a faulty index.
func checkShards(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil {
		return err
	}
	var index struct {
		Shards map[string]string `json:"weight_map"`
	}
	if json.Unmarshal(text, &index) != nil {
		return nil
	}
	all := slices.Compact(slices.Sorted(maps.Values(index.Shards)))
	missing := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d of the %d shards of %s are missing, such as %s: the download did not finish: %s", dir, len(missing),
		len(all), indexFile, missing[0], hub.Advice(dir))
}
