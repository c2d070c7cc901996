package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Files of a folder that Hugging Face's datasets wrote by save_to_disk.
const (
	savedState  = "state.json"
	savedSplits = "dataset_dict.json"
	maxSaved    = 16 << 20
)

// savedFiles lists the Arrow files of a folder that datasets saved, in their order.
func savedFiles(dir string) ([]string, error) {
	var state struct {
		Files []struct {
			Filename string `json:"filename"`
		} `json:"_data_files"`
		Indices []any `json:"_indices_files"`
	}
	err := readSaved(filepath.Join(dir, savedState), &state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notSaved(dir)
	}
	if err != nil {
		return nil, err
	}
	if len(state.Indices) > 0 {
		return nil, fmt.Errorf("%s: the rows of this data set are chosen by indices: expected one saved after flatten_indices()", dir)
	}
	var files []string
	for _, f := range state.Files {
		if f.Filename != filepath.Base(f.Filename) || filepath.Ext(f.Filename) != ".arrow" {
			return nil, fmt.Errorf("%s: the file %q: expected the name of an .arrow file", filepath.Join(dir, savedState), f.Filename)
		}
		files = append(files, filepath.Join(dir, f.Filename))
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: lists no files", filepath.Join(dir, savedState))
	}
	return files, nil
}

// notSaved says what to name instead of a folder without a data set.
func notSaved(dir string) error {
	var splits struct {
		Splits []string `json:"splits"`
	}
	if err := readSaved(filepath.Join(dir, savedSplits), &splits); err == nil && len(splits.Splits) > 0 {
		return fmt.Errorf("%s: a data set with the splits %q: expected one of them, as %s", dir, splits.Splits,
			filepath.Join(dir, splits.Splits[0]))
	}
	return fmt.Errorf("%s: a folder: expected files, a glob such as %s, or a folder that datasets' save_to_disk wrote", dir, allTexts(dir))
}

func readSaved(path string, to any) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Size() > maxSaved {
		return fmt.Errorf("%s: %d bytes, expected at most %d", path, st.Size(), maxSaved)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
