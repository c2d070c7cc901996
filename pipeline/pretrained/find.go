// Package pretrained finds models that other programs saved, and reads their tensors under the names of this one.
//
// Find takes what users name, such as a folder of the Hub's cache, to a folder or GGUF file. Config reads the model's
// config, and Open its safetensors.
package pretrained

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/placeholder"
	"github.com/gpupipe/gpupipe/pipeline/gguf"
)

// ConfigFile is the name of a model's config in its folder.
const ConfigFile = "config.json"

// Expected is what Find takes, in words.
const Expected = "a GGUF file, or a folder with config.json and model.safetensors"

// Find returns the folder with config.json, or the GGUF file, of the model that a path names: the path itself, the snapshot
// of a folder in the Hub's cache, the only model in a folder, or a model of the Hub by its name in the cache. The error says
// what was found and what to do; expected is what the caller takes, such as Expected.
func Find(path, expected string) (string, error) {
	found, err := find(path)
	if errors.Is(err, errNoModel) {
		return "", fmt.Errorf("%w: expected %s", err, expected)
	}
	return found, err
}

// errNoModel is the error of a folder or file in which nothing is like a model.
var errNoModel = errors.New("no model here")

func find(path string) (string, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent(path)
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

// hubName matches names of models on the Hugging Face Hub.
var hubName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// absent finds a model of the Hub in its cache, by a name that is no path.
func absent(path string) (string, error) {
	if to, err := os.Readlink(path); err == nil {
		return "", fmt.Errorf("%s: a symbolic link to %s, which is not there", path, to)
	}
	org, name, _ := strings.Cut(path, "/")
	if _, err := os.Stat(org); err == nil || !hubName.MatchString(path) {
		return "", fmt.Errorf("%s: no such file or folder", path)
	}
	cached := filepath.Join(hubCache(), "models--"+org+"--"+name)
	if _, err := os.Stat(cached); err == nil {
		return inFolder(cached)
	}
	return "", fmt.Errorf("%s: no such file or folder. If it is a name on the Hugging Face Hub: gpupipe downloads nothing; "+
		"\"hf download %s --local-dir %s\" does, and then name the folder %s", path, path, name, name)
}

// hubCache is the folder in which huggingface_hub keeps what it downloads.
func hubCache() string {
	home, _ := os.UserHomeDir() // without one the relative path is not there either
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache"))
	return cmp.Or(os.Getenv("HF_HUB_CACHE"), filepath.Join(cmp.Or(os.Getenv("HF_HOME"), filepath.Join(cache, "huggingface")), "hub"))
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
	if present(dir, "snapshots") || present(dir, "refs") {
		return snapshot(dir)
	}
	models, err := modelsIn(dir)
	switch {
	case err != nil:
		return "", err
	case len(models) == 1 && gguf.IsFile(models[0]):
		return models[0], nil
	case len(models) > 0:
		return "", fmt.Errorf("%s: no config.json here, but models below: name one, such as %s", dir, strings.Join(models[:min(len(models), 5)], ", "))
	case hasWeights(dir):
		return "", fmt.Errorf("%s: found model.safetensors without config.json, expected both", dir)
	}
	return "", fmt.Errorf("%s: %w", dir, errNoModel)
}

// present reports whether a folder has an entry, be it a link to nothing.
func present(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// hasWeights reports whether a folder has safetensors under the names that transformers gives them.
func hasWeights(dir string) bool {
	return present(dir, "model.safetensors") || present(dir, "model.safetensors.index.json")
}

// modelsIn lists the GGUF files in a folder, and the folders with config.json in it and in the folders that it has. Of a GGUF
// file in parts it lists the first.
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
		found, err := filepath.Glob(filepath.Join(escaped(dir), pattern, ConfigFile))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			models = append(models, filepath.Dir(f))
		}
	}
	return models, nil
}

// escaped is a path without the meaning that Glob gives to some of its characters.
func escaped(path string) string {
	return regexp.MustCompile(`[*?\[\\]`).ReplaceAllStringFunc(path, func(s string) string {
		if s == "\\" && filepath.Separator == '\\' {
			return s // Windows has no escapes
		}
		return "[" + s + "]"
	})
}

// snapshot finds the model in a folder of the Hub's cache, which has refs/NAME with a commit, and snapshots/COMMIT.
func snapshot(dir string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	commit := ""
	if text, err := os.ReadFile(filepath.Join(dir, "refs", "main")); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	switch {
	case slices.Contains(names, commit):
		return inSnapshot(dir, commit)
	case len(names) == 1:
		return inSnapshot(dir, names[0])
	case len(names) > 1:
		return "", fmt.Errorf("%s: a folder of the Hub's cache with %d snapshots and none of refs/main: name one, such as %s", dir, len(names),
			filepath.Join(dir, "snapshots", names[0]))
	}
	return "", fmt.Errorf("%s: a folder of the Hub's cache without a snapshot (refs/main names %q): the download did not finish, so download the model again", dir, commit)
}

func inSnapshot(dir, commit string) (string, error) {
	return inFolder(filepath.Join(dir, "snapshots", commit))
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
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		if to, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s: a symbolic link to %s, which is not there: the download did not finish, or the folder was moved without its blobs",
					filepath.Join(dir, name), to)
			}
		}
	}
	if hasWeights(dir) {
		return nil
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
		case isPickle(name) && !strings.HasPrefix(name, "training_args") && !strings.HasPrefix(name, "optimizer") && !strings.HasPrefix(name, "scheduler"):
			pickles = append(pickles, name)
		}
	}
	switch {
	case len(tensors) > 1 && strings.HasPrefix(tensors[0], "model-0"):
		return fmt.Errorf("%s: found the shards %s to %s without model.safetensors.index.json, which says what they hold: download it too", dir, tensors[0],
			tensors[len(tensors)-1])
	case len(tensors) > 0:
		return fmt.Errorf("%s: found %s, expected model.safetensors or model.safetensors.index.json", dir, strings.Join(tensors, ", "))
	case len(pickles) > 0:
		return fmt.Errorf("%s: %s", filepath.Join(dir, pickles[0]), pickleAdvice)
	}
	return nil // whoever opens the tensors reports that there are none
}
