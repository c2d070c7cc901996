"use strict";
// The token is in the fragment of the URL, which browsers do not send.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const at = (id) => document.getElementById(id);
const headers = { "Content-Type": "application/json", ...(token ? { Authorization: "Bearer " + token } : {}) };
const usualLength = 100; // of a text to continue, in tokens
let model, talk = [], running;

async function post(path, request) {
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(request), signal: running.signal });
  if (!response.ok) throw await failed(response);
  return response;
}

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

// events yields the objects of a stream of server-sent events. Comments keep the connection and are dropped.
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

// room is a length for a text to continue that fits the context: a text has at most as many tokens as bytes.
async function room(text) {
  let prompt = new TextEncoder().encode(text).length + 1;
  if (prompt + usualLength > model.max_model_len) {
    const counted = await post("v1/completions", { model: model.id, prompt: text, max_tokens: 0 });
    prompt = (await counted.json()).usage.prompt_tokens;
  }
  return Math.max(1, Math.min(usualLength, model.max_model_len - prompt + 1));
}

// asked is the request for a text, as the fields of the page have it. Without a number of tokens, what fits is made.
async function asked(chat, text) {
  const request = { model: model.id, stream: true, stream_options: { continuous_usage_stats: true } };
  for (const name of ["temperature", "top_p", "seed"]) if (at(name).value !== "") request[name] = at(name).valueAsNumber;
  if (at("tokens").value !== "") request.max_tokens = at("tokens").valueAsNumber;
  else if (!chat) request.max_tokens = await room(text);
  if (chat) request.messages = [...talk, { role: "user", content: text }];
  else request.prompt = text;
  return request;
}

// speed describes a number of tokens that were made in a number of milliseconds.
const speed = (tokens, milliseconds) => `${(1000 * tokens / milliseconds).toFixed(1)} tokens/s`;

async function generate() {
  const chat = at("chat").checked && model.chat_template, text = at("prompt").value;
  running = new AbortController();
  at("send").disabled = !(at("stop").disabled = false);
  at("state").textContent = "";
  const question = chat ? entry("asked", text) : null;
  const made = entry("made", chat ? "" : text);
  if (chat) at("prompt").value = "";
  let answer = "", request;
  try {
    request = await asked(chat, text);
    const response = await post(chat ? "v1/chat/completions" : "v1/completions", request);
    const answered = performance.now();
    let began, first, tokens = 0;
    for await (const e of events(response.body)) {
      if (e.error) throw new Error(e.error.message);
      for (const c of e.choices) answer += c.text ?? c.delta.content ?? "";
      made.textContent = answer;
      tokens = e.usage.completion_tokens;
      if (began === undefined && tokens > 0) [began, first] = [performance.now(), tokens];
      const passed = performance.now() - began;
      if (tokens > first && passed > 0) at("state").textContent = speed(tokens - first, passed);
    }
    // All tokens may arrive at once.
    if (tokens > 0) at("state").textContent ||= speed(tokens, Math.max(performance.now() - answered, 1));
  } catch (e) {
    if (e.name !== "AbortError") entry("error", e.message);
    if (answer === "") { // the message is not lost: it can be changed and sent again
      made.parentElement.remove();
      question?.parentElement.remove();
      if (chat && at("prompt").value === "") at("prompt").value = text;
    }
  }
  if (chat && answer) talk = [...request.messages, { role: "assistant", content: answer }];
  at("send").disabled = !(at("stop").disabled = true);
  at("prompt").focus();
}

at("form").addEventListener("submit", (e) => { e.preventDefault(); if (model && !at("send").disabled) generate(); });
at("prompt").addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  at("form").requestSubmit();
});
at("stop").addEventListener("click", () => running.abort());
at("clear").addEventListener("click", () => { talk = []; at("log").replaceChildren(); });

(async () => {
  try {
    const response = await fetch("v1/models", { headers });
    if (!response.ok) throw await failed(response);
    model = (await response.json()).data[0];
    at("model").textContent = document.title = model.id;
    at("facts").textContent = `context of ${model.max_model_len} tokens`;
    at("tokens").max = model.max_model_len;
    if (model.chat_template) {
      at("mode").hidden = false;
      at("ask").textContent = "Message (Enter sends, Shift+Enter begins a line)";
      at("prompt").value = "";
    }
  } catch (e) {
    entry("error", e.message);
  }
})();
