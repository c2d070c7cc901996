package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDescribe(t *testing.T) {
	recorded := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}
	for want, c := range map[string]struct {
		version, linked string
		settings        []debug.BuildSetting
	}{
		"development version (unknown revision)":       {"(devel)", "", nil},
		"development version (b215ba6)":                {"(devel)", "b215ba6", recorded},
		"development version (b215ba6, modified)":      {"", "b215ba6-dirty", nil},
		"development version (0123456789ab, modified)": {"v0.0.0-20261122164711-0123456789ab+dirty", "", recorded},
		"v0.1.0 (tagged)":                              {"(devel)", "v0.1.0", nil},
		"v0.1.0-3 (b215ba6, modified)":                 {"(devel)", "v0.1.0-3-gb215ba6-dirty", nil},
		"v0.1.0 (0123456789ab, modified)":              {"v0.1.0", "", recorded},
		"v0.2.0 (unknown revision)":                    {"v0.2.0", "", nil}, // go install gpupipe@v0.2.0
	} {
		assert.Equal(t, want, describe(&debug.BuildInfo{Main: debug.Module{Version: c.version}, Settings: c.settings}, c.linked))
	}
}
