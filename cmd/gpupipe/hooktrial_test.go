package main

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every hook of the table has a trial for hook check and hook bench: a new one that is forgotten panics.
func TestEveryHookHasATrial(t *testing.T) {
	h, err := hook.NewHost("")
	require.NoError(t, err)
	defer func() { assert.NoError(t, h.Close()) }()
	f := &moduleFlags{Vocab: 16, SeqLen: 8}
	for _, k := range hook.Kinds() {
		module := wasmtest.Hook(k.Name)
		m, err := h.LoadBytes(hook.Spec{File: k.Name + ".wasm", Hook: k.Name}, module.Encode())
		require.NoError(t, err)
		assert.NotPanics(t, func() { _, _ = f.trials(nil, m, 1) }, k.Name)
	}
	assert.PanicsWithValue(t, `hook "new" has no trial`, func() { _, _ = f.trials(nil, &hook.Module{Spec: hook.Spec{Hook: "new"}}, 1) })
}
