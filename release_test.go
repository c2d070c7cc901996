package gpupipe

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// releaseConfig is what .ci/goreleaser.yaml may say: the keys of goreleaser that it uses, spelled as its schema has
// them.
type releaseConfig struct {
	Version     int
	ProjectName string `yaml:"project_name"`
	Dist        string
	Before      struct{ Hooks []string }
	Builds      []struct {
		ID, Skip, Main            string
		Goos, Goarch              []string
		Env, Flags, Ldflags, Tags []string
	}
	Archives []struct {
		Formats         []string
		FormatOverrides []struct {
			Goos    string
			Formats []string
		} `yaml:"format_overrides"`
		WrapInDirectory bool `yaml:"wrap_in_directory"`
		Files           []releaseFile
	}
	Checksum  map[string]string
	Snapshot  map[string]string
	Changelog struct{ Disable bool }
	Release   struct{ Disable bool }
}

// releaseFile is a file of an archive: a name, or a pattern with a destination.
type releaseFile struct {
	Src, Dst    string
	StripParent bool `yaml:"strip_parent"`
}

func (f *releaseFile) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		f.Src = n.Value
		return nil
	}
	type plain releaseFile
	return n.Decode((*plain)(f))
}

// make release runs goreleaser, which takes minutes to compile. This test reads its config instead: every key is known,
// every file is there or made by release.sh, and every target can be linked and is known to release.sh.
func TestReleaseConfig(t *testing.T) {
	text, err := os.ReadFile(".ci/goreleaser.yaml")
	require.NoError(t, err)
	script, err := os.ReadFile(".ci/release.sh")
	require.NoError(t, err)
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var c releaseConfig
	require.NoError(t, d.Decode(&c))
	assert.Equal(t, 2, c.Version)
	assert.True(t, c.Changelog.Disable && c.Release.Disable, "archives are published by hand")
	for _, hook := range c.Before.Hooks {
		st, err := os.Stat(hook)
		require.NoError(t, err)
		assert.NotZero(t, st.Mode()&0o111, hook)
	}
	webgpu, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cogentcore/webgpu").Output()
	require.NoError(t, err)
	ids := map[string]bool{}
	for _, b := range c.Builds {
		assert.False(t, ids[b.ID], "%s is there twice", b.ID)
		ids[b.ID] = true
		assert.Contains(t, b.Skip, `.Env.TARGETS "`+b.ID+`"`)
		assert.Regexp(t, `found\+=\((\S+ )?`+b.ID+`\b`, string(script), "release.sh finds its compiler")
		assert.FileExists(t, filepath.Join(b.Main, "main.go"))
		require.Len(t, b.Env, 2, b.ID)
		assert.Equal(t, "CGO_ENABLED=1", b.Env[0], "WebGPU is linked as C")
		for _, system := range b.Goos {
			for _, processor := range b.Goarch {
				assert.FileExists(t, filepath.Join(strings.TrimSpace(string(webgpu)), "wgpu", "lib", system, processor, "libwgpu_native.a"))
			}
		}
		require.Len(t, b.Ldflags, 1)
		_, variable, ok := strings.Cut(b.Ldflags[0], "-X ")
		variable, _, _ = strings.Cut(variable, "=")
		require.True(t, ok)
		assert.Contains(t, string(makefile), "-X "+variable+"=", "make build sets the same variable")
		source, err := os.ReadFile("internal/version/version.go")
		require.NoError(t, err)
		assert.Contains(t, string(source), "var "+variable[strings.LastIndexByte(variable, '.')+1:]+" ")
		compiler, ok := strings.CutPrefix(b.Env[1], "CC=")
		assert.True(t, ok)
		if variable, ok := strings.CutPrefix(compiler, "{{ .Env."); ok {
			assert.Contains(t, string(script), strings.TrimSuffix(variable, " }}")+"=", "release.sh sets it")
		} else if compiler != "gcc" {
			assert.Contains(t, string(script), "! have "+compiler+" || found+=("+b.ID+")")
		}
	}
	assert.Subset(t, ids, map[string]bool{"linux-amd64": true, "linux-arm64": true, "windows-amd64": true, "darwin-amd64": true,
		"darwin-arm64": true})
	for _, a := range c.Archives {
		for _, f := range a.Files {
			if made, ok := strings.CutPrefix(f.Src, "build/"); ok {
				assert.Contains(t, string(script), strings.TrimSuffix("build/"+made, "*"))
			} else {
				assert.FileExists(t, f.Src)
			}
		}
	}
}

// winget's manifests name the archive of Windows, its hash and the program in it. Their keys are those of the schema
// 1.10.
func TestWinget(t *testing.T) {
	dir := t.TempDir()
	sums := filepath.Join(dir, "checksums.txt")
	sum := strings.Repeat("0123456789abcdef", 4)
	lines := "aa  gpupipe_v1.2.0_linux_amd64.tar.gz\n" + sum + "  gpupipe_v1.2.0_windows_amd64.zip\n"
	require.NoError(t, os.WriteFile(sums, []byte(lines), 0o644))
	out, err := exec.Command(".ci/winget.sh", "v1.2.0", sums, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	manifest := func(file string) (m map[string]any) {
		text, err := os.ReadFile(filepath.Join(dir, "gpupipe.gpupipe"+file))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &m))
		assert.Equal(t, []any{"gpupipe.gpupipe", "1.2.0", "1.10.0"}, []any{m["PackageIdentifier"], m["PackageVersion"], m["ManifestVersion"]})
		assert.Contains(t, string(text), fmt.Sprintf("winget-manifest.%v.1.10.0.schema.json", m["ManifestType"]))
		return m
	}
	assert.Equal(t, "en-US", manifest(".yaml")["DefaultLocale"])
	text := manifest(".locale.en-US.yaml")
	for _, key := range []string{"PackageLocale", "Publisher", "PackageName", "License", "ShortDescription"} {
		assert.NotEmpty(t, text[key], key)
	}
	installer := manifest(".installer.yaml")
	assert.Equal(t, []any{map[string]any{"RelativeFilePath": `gpupipe_v1.2.0_windows_amd64\gpupipe.exe`, "PortableCommandAlias": "gpupipe"}},
		installer["NestedInstallerFiles"], "archives are wrapped in a folder of their name")
	assert.Equal(t, []any{map[string]any{"Architecture": "x64", "InstallerSha256": strings.ToUpper(sum),
		"InstallerUrl": "https://github.com/gpupipe/gpupipe/releases/download/v1.2.0/gpupipe_v1.2.0_windows_amd64.zip"}}, installer["Installers"])
}
