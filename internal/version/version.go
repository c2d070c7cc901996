// Package version identifies the running program.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// revision is the output of git describe, set by the linker in builds that do not record the revision otherwise: see
// the Makefile.
var revision string

// String returns the version of gpupipe and the revision of its source, as in "v0.1.0 (b215ba6, modified)".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(info, revision)
}

// Platform returns Go's version and the platform, as in "go1.26.0 linux/amd64".
func Platform() string {
	return fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// describe uses what the linker set, else what the go command recorded.
func describe(info *debug.BuildInfo, linked string) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	rev, modified := strings.CutSuffix(linked, "-dirty")
	if rev == "" {
		rev, modified = settings["vcs.revision"], settings["vcs.modified"] == "true"
		rev = rev[:min(len(rev), 12)]
	}
	version := info.Main.Version
	if version == "(devel)" || strings.HasPrefix(version, "v0.0.0-") { // Go makes up a version for a source without tags
		version = ""
	}
	if tag, commits, ok := strings.Cut(rev, "-g"); ok || strings.HasPrefix(rev, "v") { // v0.1.0, or v0.1.0-3-gb215ba6: three commits later
		version, rev = tag, cmp.Or(commits, "tagged")
	}
	rev = cmp.Or(rev, "unknown revision")
	if modified {
		rev += ", modified"
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(version, "development version"), rev)
}
