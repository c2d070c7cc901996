package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/chromium"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPageIsServed(t *testing.T) {
	url, _ := guarded(t, trained(t))
	r, err := http.Get(url + "/")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusOK, r.StatusCode)
	assert.Equal(t, policy, r.Header.Get("Content-Security-Policy"))
}

// The page streams the text that the API gives, with the token of its URL's fragment.
func TestPage(t *testing.T) {
	chromium.Rest(t)
	url, _ := guarded(t, trained(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, body, err := post(url, testToken, `{"model": "m", "prompt": "the cat", "max_tokens": 9, "temperature": 0.5, "seed": 3}`)
	require.NoError(t, err)
	want, err := json.Marshal("the cat" + textOf(t, body))
	require.NoError(t, err)
	tab, err := chromium.Open(ctx, url+"/#token="+testToken)
	require.NoError(t, err)
	defer tab.Close()
	require.NoError(t, tab.Await(ctx, `document.getElementById("facts").textContent === "context of 32 tokens"`))
	fill := `((values) => { for (const [id, v] of Object.entries(values)) document.getElementById(id).value = v; document.getElementById("send").click(); return true; })`
	require.NoError(t, tab.Evaluate(ctx, fill+`({prompt: "the cat", tokens: 9, temperature: 0.5, seed: 3})`, nil))
	require.NoError(t, tab.Await(ctx, fmt.Sprintf(`document.querySelector("#log .made")?.textContent === %s`, want)))
	require.NoError(t, tab.Await(ctx, `!document.getElementById("send").disabled`))
	require.NoError(t, tab.Evaluate(ctx, fill+`({tokens: 900})`, nil))
	require.NoError(t, tab.Await(ctx, `document.getElementById("tokens").validity.rangeOverflow`))
	require.NoError(t, tab.Evaluate(ctx, fill+`({tokens: ""})`, nil))
	require.NoError(t, tab.Await(ctx, `document.querySelectorAll("#log .made").length === 2 && !document.getElementById("send").disabled`))
	require.NoError(t, tab.Await(ctx, `!document.querySelector("#log .error")`))
	require.NoError(t, tab.Evaluate(ctx, fill+`({prompt: "x".repeat(40)})`, nil))
	require.NoError(t, tab.Await(ctx, `document.querySelector("#log .error")?.textContent.includes("exceed the context of 32 tokens")`))

	wrong, err := chromium.Open(ctx, url+"/#token=wrong")
	require.NoError(t, err)
	defer wrong.Close()
	require.NoError(t, wrong.Await(ctx, `document.querySelector("#log .error")?.textContent.includes("Authorization")`))
}

// Enter sends a message of a chat, whose speed is shown. A message that fails stands in the field again.
func TestPageChat(t *testing.T) {
	chromium.Rest(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	url, _ := guarded(t, chatting(t, "{{ messages[-1].content }}"))
	tab, err := chromium.Open(ctx, url+"/#token="+testToken)
	require.NoError(t, err)
	defer tab.Close()
	require.NoError(t, tab.Await(ctx, `!document.getElementById("mode").hidden`))
	// With this seed the answer has several tokens; one alone has no speed.
	require.NoError(t, tab.Evaluate(ctx, `document.getElementById("seed").value = 3`, nil))
	enter := `((text) => { const p = document.getElementById("prompt"); p.value = text; p.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", cancelable: true})); return true; })`
	require.NoError(t, tab.Evaluate(ctx, enter+`("the cat")`, nil))
	require.NoError(t, tab.Await(ctx, `document.querySelector("#log .made")?.textContent && !document.getElementById("send").disabled`))
	require.NoError(t, tab.Await(ctx, `document.getElementById("prompt").value === "" && document.getElementById("state").textContent.endsWith(" tokens/s")`))
	require.NoError(t, tab.Evaluate(ctx, enter+`("x".repeat(40))`, nil))
	require.NoError(t, tab.Await(ctx, `document.querySelector("#log .error")?.textContent.includes("exceed the context")`))
	require.NoError(t, tab.Await(ctx, `document.getElementById("prompt").value === "x".repeat(40)`))
}
