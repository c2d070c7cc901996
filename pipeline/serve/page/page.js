"use strict";
// The token is in the fragment of the URL, which browsers do not send.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const at = (id) => document.getElementById(id);
const headers = { "Content-Type": "application/json", ...(token ? { Authorization: "Bearer " + token } : {}) };
let model, talk = [], running;

async function failed(response) {
  let text = response.status + " " + response.statusText;
  try { text = (await response.json()).error.message; } catch { /* no JSON */ }
  return new Error(text);
}

function entry(kind, text) {
  const div = document.createElement("div");
  div.className = kind;
  div.append(document.createTextNode(text));
  const made = document.createElement("span");
  div.append(made);
  at("log").append(div);
  return made;
}

// events yields the objects of a stream of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const p of parts) if (p.startsWith("data: ") && p !== "data: [DONE]") yield JSON.parse(p.slice(6));
  }
}

async function generate() {
  const chat = at("chat").checked && model.chat_template, text = at("prompt").value;
  const request = { model: model.id, stream: true, max_tokens: at("tokens").valueAsNumber, temperature: at("temperature").valueAsNumber, top_p: at("top_p").valueAsNumber };
  if (at("seed").value !== "") request.seed = at("seed").valueAsNumber;
  if (chat) {
    entry("asked", text);
    request.messages = [...talk, { role: "user", content: text }];
  } else request.prompt = text;
  running = new AbortController();
  at("send").disabled = !(at("stop").disabled = false);
  const began = performance.now();
  let answer = "", pieces = 0;
  const made = entry("made", chat ? "" : text);
  try {
    const response = await fetch(chat ? "v1/chat/completions" : "v1/completions", { method: "POST", headers, body: JSON.stringify(request), signal: running.signal });
    if (!response.ok) throw await failed(response);
    for await (const e of events(response.body)) {
      if (e.error) throw new Error(e.error.message);
      for (const c of e.choices) answer += c.text ?? c.delta.content;
      made.textContent = answer;
      at("state").textContent = `${(++pieces / (performance.now() - began) * 1000).toFixed(0)} pieces/s`;
    }
  } catch (e) {
    if (e.name !== "AbortError") entry("error", e.message);
  }
  if (chat && answer) talk = [...request.messages, { role: "assistant", content: answer }];
  if (chat) at("prompt").value = "";
  at("send").disabled = !(at("stop").disabled = true);
}

at("form").addEventListener("submit", (e) => { e.preventDefault(); if (model && !at("send").disabled) generate(); });
at("prompt").addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) at("form").requestSubmit(); });
at("stop").addEventListener("click", () => running.abort());
at("clear").addEventListener("click", () => { talk = []; at("log").replaceChildren(); });

(async () => {
  try {
    const response = await fetch("v1/models", { headers });
    if (!response.ok) throw await failed(response);
    model = (await response.json()).data[0];
    at("model").textContent = document.title = model.id;
    at("facts").textContent = `context of ${model.max_model_len} tokens`;
    if (model.chat_template) {
      at("mode").hidden = false;
      at("ask").textContent = "Message";
      at("prompt").value = "";
    }
  } catch (e) {
    entry("error", e.message);
  }
})();
