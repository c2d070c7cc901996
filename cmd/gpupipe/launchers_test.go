package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

const launchers = "../../examples/cluster/"

// fields are the fields that manifests may have, by kind: those of the types that the examples use, as JobSet v1alpha2,
// Trainer v1alpha1, Kubernetes v1 and the Compose specification define them. A value is the type of a field, the fields
// of an object, or a list with what its elements are. A field that ends in "!" is required; "=x" has to be x.
const fields = `
_metadata: &metadata {name!: string, labels: strings}
_pod: &pod
  restartPolicy: string
  securityContext: {runAsNonRoot: bool, runAsUser: int, runAsGroup: int, fsGroup: int}
  containers!:
    - name!: string
      image!: string
      workingDir: string
      command: [string]
      args: [string]
      ports: [{name: string, containerPort!: int}]
      volumeMounts: [{name!: string, mountPath!: string, readOnly: bool}]
  volumes: [{name!: string, persistentVolumeClaim: {claimName!: string}, configMap: {name!: string}}]
_jobs: &jobs
  - name!: string
    replicas: int
    template!:
      metadata: {labels: strings}
      spec!: {parallelism: int, completions: int, backoffLimit: int, template!: {spec!: *pod}}
PersistentVolumeClaim:
  apiVersion!: =v1
  kind!: string
  metadata!: *metadata
  spec!: {accessModes!: [string], resources!: {requests!: strings}}
JobSet:
  apiVersion!: =jobset.x-k8s.io/v1alpha2
  kind!: string
  metadata!: *metadata
  spec!:
    network: {enableDNSHostnames: bool, publishNotReadyAddresses: bool}
    successPolicy: {operator!: =All, targetReplicatedJobs: [string]}
    failurePolicy: {maxRestarts: int}
    replicatedJobs!: *jobs
TrainingRuntime:
  apiVersion!: =trainer.kubeflow.org/v1alpha1
  kind!: string
  metadata!: *metadata
  spec!: {mlPolicy: {numNodes: int}, template!: {spec!: {replicatedJobs!: *jobs}}}
TrainJob:
  apiVersion!: =trainer.kubeflow.org/v1alpha1
  kind!: string
  metadata!: *metadata
  spec!:
    runtimeRef!: {apiGroup: =trainer.kubeflow.org, kind: string, name!: string}
    trainer: {numNodes: int, image: string, command: [string], args: [string], env: [{name!: string, value: string}]}
compose:
  name: string
  services!:
    coordinator!: &service {image!: string, command: [string], volumes: [string], scale: int}
    member!: *service
  volumes: {runs: {}, token: {driver_opts: strings}}
`

// misfit returns what is wrong with a value, or "".
func misfit(at string, schema, value any) string {
	switch s := schema.(type) {
	case map[string]any:
		object, ok := value.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: found %v, expected an object", at, value)
		}
		for key, v := range object {
			inner, known := s[key]
			if required, ok := s[key+"!"]; ok {
				inner, known = required, true
			}
			if !known {
				return fmt.Sprintf("%s: found the field %s, which does not exist", at, key)
			}
			if wrong := misfit(at+"."+key, inner, v); wrong != "" {
				return wrong
			}
		}
		for key := range s {
			if name, required := strings.CutSuffix(key, "!"); required && object[name] == nil {
				return fmt.Sprintf("%s: expected the field %s", at, name)
			}
		}
		return ""
	case []any:
		list, ok := value.([]any)
		if !ok || len(list) == 0 {
			return fmt.Sprintf("%s: found %v, expected a list", at, value)
		}
		for i, v := range list {
			if wrong := misfit(fmt.Sprintf("%s[%d]", at, i), s[0], v); wrong != "" {
				return wrong
			}
		}
		return ""
	}
	ok := false
	switch kind := schema.(string); kind {
	case "string":
		_, ok = value.(string)
	case "int":
		_, ok = value.(int)
	case "bool":
		_, ok = value.(bool)
	case "strings":
		object, is := value.(map[string]any)
		ok = is
		for _, v := range object {
			_, is := v.(string)
			ok = ok && is
		}
	default:
		ok = kind[0] == '=' && value == kind[1:]
	}
	if !ok {
		return fmt.Sprintf("%s: found %v, expected %v", at, value, schema)
	}
	return ""
}

// manifests are the documents of a YAML file. Compose's variables have their defaults.
func manifests(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(launchers + file)
	require.NoError(t, err)
	text = regexp.MustCompile(`\$\{[A-Z]+:-([^}]*)\}`).ReplaceAll(text, []byte("$1"))
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m map[string]any
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, file)
		all = append(all, m)
	}
}

// The manifests have the fields that their types know, and none that they do not.
func TestLauncherManifests(t *testing.T) {
	var known map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(fields), &known))
	var kinds []string
	for _, file := range []string{"compose.yaml", "jobset.yaml", "trainjob.yaml"} {
		for _, m := range manifests(t, file) {
			kind, ok := m["kind"].(string)
			if !ok {
				kind = "compose"
			}
			kinds = append(kinds, kind)
			require.Contains(t, known, kind, file)
			assert.Empty(t, misfit(kind, known[kind], m), file)
		}
	}
	assert.Equal(t, []string{"compose", "PersistentVolumeClaim", "JobSet", "TrainingRuntime", "TrainJob"}, kinds)

	wrong := manifests(t, "jobset.yaml")[1]
	wrong["spec"].(map[string]any)["replicas"] = 3
	assert.Equal(t, "JobSet.spec: found the field replicas, which does not exist", misfit("JobSet", known["JobSet"], wrong))
	delete(wrong["spec"].(map[string]any), "replicas")
	delete(wrong["spec"].(map[string]any), "replicatedJobs")
	assert.Equal(t, "JobSet.spec: expected the field replicatedJobs", misfit("JobSet", known["JobSet"], wrong))
}

// The commands of the launchers exist with their flags, pass the token by file only, and wait for as many members as
// are started. The config is one.
func TestLauncherCommands(t *testing.T) {
	_, err := config.Load(launchers+"c.yaml", nil)
	require.NoError(t, err)
	apart, err := config.Load(launchers+"replicas.yaml", nil)
	require.NoError(t, err)
	parse := func(args []string) *kong.Context {
		parser, err := kong.New(&commands{}, kong.Vars(targetVars()), kong.Vars{"version": ""},
			kong.KindMapper(reflect.String, kong.MapperFunc(text)))
		require.NoError(t, err)
		c, err := parser.Parse(args)
		require.NoError(t, err, args)
		return c
	}
	for _, file := range []string{"compose.yaml", "jobset.yaml", "trainjob.yaml", "gpupipe.sbatch", "README.md"} {
		var found []string
		for _, args := range launched(t, file) {
			c := parse(args)
			found = append(found, c.Command())
			assert.Contains(t, args, "--token-file", "%s: %v", file, args)
		}
		slices.Sort(found)
		assert.Equal(t, []string{"host <config>", "join"}, slices.Compact(found), file)
	}
	jobs := manifests(t, "jobset.yaml")[1]["spec"].(map[string]any)["replicatedJobs"].([]any)
	members := jobs[1].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["parallelism"]
	assert.Contains(t, strings.Join(launched(t, "jobset.yaml")[0], " "), fmt.Sprintf("--members %d ", members))
	assert.Equal(t, members, apart.Pipeline.Replicas*apart.Pipeline.Stages, "replicas.yaml is for as many")
	assert.True(t, apart.Pipeline.Independent())
	trainer := manifests(t, "trainjob.yaml")[1]["spec"].(map[string]any)["trainer"].(map[string]any)
	value := trainer["env"].([]any)[0].(map[string]any)["value"]
	assert.Equal(t, fmt.Sprint(trainer["numNodes"].(int)-1), value, "node 0 is the coordinator")
	assert.Equal(t, apart.Pipeline.Replicas, trainer["numNodes"], "which computes, too")
}

// launched are the arguments of the program in a file: of containers, or of lines of a script.
func launched(t *testing.T, file string) (all [][]string) {
	t.Helper()
	if strings.HasSuffix(file, ".yaml") && file != "trainjob.yaml" {
		var walk func(v any)
		walk = func(v any) {
			switch x := v.(type) {
			case map[string]any:
				for _, key := range slices.Sorted(maps.Keys(x)) {
					args, ok := x[key].([]any)
					if !ok || (key != "args" && key != "command") || len(args) < 2 {
						walk(x[key])
						continue
					}
					var list []string
					for _, a := range args {
						list = append(list, a.(string))
					}
					all = append(all, list)
				}
			case []any:
				for _, e := range x {
					walk(e)
				}
			}
		}
		for _, m := range manifests(t, file) {
			walk(m)
		}
		return all
	}
	text, err := os.ReadFile(launchers + file)
	require.NoError(t, err)
	if file == "README.md" {
		text = fenced.FindSubmatch(text)[2]
	}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)\bgpupipe ((?:host|join) [^&\n]*)`).FindAllStringSubmatch(joined, -1) {
		line := strings.ReplaceAll(m[1], `"${flags[@]}"`, "")                        // of the user's choice
		command := regexp.MustCompile(`"\$\{?\w+[^"]*"`).ReplaceAllString(line, "1") // a number is a path, a name and a count
		command, _, _ = strings.Cut(command, "#")
		all = append(all, strings.Fields(command))
	}
	return all
}

// The Slurm script starts a coordinator and a member on each node, which share a file that only their user may read,
// and leaves nothing.
func TestSlurmScript(t *testing.T) {
	tier.Rest(t)
	dir := t.TempDir()
	script, err := filepath.Abs(launchers + "gpupipe.sbatch")
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	c := small(t, dir)
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/bash\n"+text), 0o777))
	}
	write("scontrol", `echo 127.0.0.1; echo 127.0.0.1`)
	write("srun", `n=2
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && n=1; shift; done
for ((i = 0; i < n; i++)); do "$@" & pids+=($!); done
for p in "${pids[@]}"; do wait "$p" || exit; done
`)
	write("gpupipe", `verb=$1; shift
[[ $verb == host ]] && set -- "$@" --listen 127.0.0.1:0 --set train.steps=2 --set model.n_layers=2
GPUPIPE_TEST_COMMAND=1 exec "$GPUPIPE" "$verb" "$@"
`)
	cmd := exec.Command("timeout", "120", "bash", script, c)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GPUPIPE="+self, "PATH="+dir+"/bin:"+os.Getenv("PATH"), "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2]",
		"SLURM_JOB_NUM_NODES=2", "GPUPIPE_DEVICE=cpu:0/1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "gp1.", "the token is printed nowhere")
	left, err := filepath.Glob(dir + "/.gpupipe-token*")
	require.NoError(t, err)
	assert.Empty(t, left)
}
