"use strict";
// The page's face. What trains is trainer.wasm, see main_js.go.

const $ = (id) => document.getElementById(id);
const sizes = ["d_model", "n_layers", "n_heads", "seq_len"];
const losses = [];
let running = null;

function note(text, kind) {
  const line = document.createElement("div");
  line.textContent = text;
  line.className = kind || "";
  $("log").append(line);
}

// fill shows a config in the form; config reads it back.
function fill(c) {
  for (const key of sizes) $(key).value = c.model[key];
  for (const key of ["batch_size", "steps", "optimizer"]) $(key).value = c[key];
}

function config(base) {
  const c = structuredClone(base), number = (key) => Number($(key).value);
  for (const key of sizes) c.model[key] = number(key);
  c.model.n_kv_heads = c.model.n_heads;
  c.model.d_ff = Math.ceil(c.model.d_model * 8 / 3 / 16) * 16;
  c.batch_size = number("batch_size");
  c.steps = number("steps");
  c.warmup = Math.min(c.warmup, Math.ceil(c.steps / 10));
  c.optimizer = $("optimizer").value;
  return c;
}

const bytes = async (body) => new Uint8Array(await body.arrayBuffer());
const load = async (url) => {
  const r = await fetch(url);
  if (!r.ok) throw new Error(`${url}: ${r.status} ${r.statusText}`);
  return bytes(r);
};

async function hooks() {
  const list = [];
  for (const hook of ["build_loss", "learning_rate"]) {
    const file = $(hook).files[0];
    if (file) list.push({file: file.name, hook, config: $(hook + "_config").value, module: await bytes(file)});
  }
  return list;
}

// train does a run {config, text, hooks, sampleEvery, prompt} and resolves when it has ended.
async function train(run) {
  losses.length = 0;
  $("log").textContent = $("sample").textContent = "";
  $("start").disabled = true;
  try {
    running = gpupipe.train({...run, config: JSON.stringify(run.config)}, {
      note,
      step(step, loss, seconds) {
        losses.push(loss);
        const tokens = step * run.config.batch_size * run.config.model.seq_len;
        $("state").textContent = `step ${step} of ${run.config.steps}, loss ${loss.toFixed(4)}, ${Math.round(tokens / seconds)} tokens/s`;
        requestAnimationFrame(draw);
      },
      sample(step, text) { $("sample").textContent = text; },
    });
    $("stop").disabled = false;
    await running.done;
    note(`ended after step ${losses.length}`);
  } finally {
    running = null;
    $("start").disabled = false;
    $("stop").disabled = true;
  }
}

// draw draws the losses so far.
function draw() {
  const canvas = $("chart"), scale = devicePixelRatio || 1, left = 44, bottom = 18;
  const w = canvas.width = canvas.clientWidth * scale, h = canvas.height = canvas.clientHeight * scale;
  const g = canvas.getContext("2d");
  if (!losses.length) return;
  g.font = `${12 * scale}px system-ui`;
  const top = Math.max(...losses), low = Math.min(0, ...losses);
  const x = (i) => left * scale + (w - left * scale - 4) * i / Math.max(1, losses.length - 1);
  const y = (l) => 4 + (h - bottom * scale - 8) * (top - l) / (top - low || 1);
  g.strokeStyle = "#ccc";
  g.fillStyle = "#555";
  for (let i = 0; i <= 4; i++) {
    const l = low + (top - low) * i / 4;
    g.beginPath();
    g.moveTo(left * scale, y(l));
    g.lineTo(w, y(l));
    g.stroke();
    g.fillText(l.toFixed(2), 2, y(l) + (i === 4 ? 10 : 4) * scale);
  }
  g.fillText(`${losses.length} steps`, left * scale, h - 4 * scale);
  g.strokeStyle = "#06c";
  g.lineWidth = 1.5 * scale;
  g.beginPath();
  losses.forEach((l, i) => i ? g.lineTo(x(i), y(l)) : g.moveTo(x(i), y(l)));
  g.stroke();
}

const complain = (e) => note(e.message || String(e), "error");

globalThis.gpupipeReady = async () => {
  const base = JSON.parse(gpupipe.defaults());
  fill(base);
  try {
    $("adapter").textContent = `Your GPU: ${await gpupipe.adapter()}.`;
  } catch (e) {
    $("adapter").textContent = `${e.message}. Try a current Chrome, Edge, Safari or Firefox; on Linux chrome://flags/#enable-unsafe-webgpu may help.`;
    $("adapter").className = "error";
    return;
  }
  $("start").disabled = false;
  $("start").onclick = async () => {
    try {
      const file = $("text").files[0];
      await train({config: config(base), text: file ? await bytes(file) : await load("sample.txt"), hooks: await hooks(), sampleEvery: 25, prompt: $("prompt").value});
    } catch (e) {
      complain(e);
    }
  };
  $("stop").onclick = () => running && running.stop();
};

(async () => {
  try {
    const go = new Go();
    const {instance} = await WebAssembly.instantiate(await load("trainer.wasm"), go.importObject);
    await go.run(instance);
    throw new Error("the program has ended: the browser's console says why");
  } catch (e) {
    complain(e);
  }
})();
