// Package sources lists the files of the module.
package sources

import (
	"io/fs"
	"os"
)

// outputs are the folders of the root that hold no sources. Other tests and commands write there.
var outputs = map[string]bool{".git": true, "bin": true, "build": true, "runs": true, "studies": true}

// Walk calls do with the path of each regular file of the module in dir, relative to dir with slashes, in lexical
// order.
func Walk(dir string, do func(path string) error) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case outputs[path]:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil // the .git of a worktree
		case !d.Type().IsRegular():
			return nil
		}
		return do(path)
	})
}
