"use strict";
// The page's user interface. trainer.wasm trains; see main_js.go.

const $ = (id) => document.getElementById(id);
const losses = [];
let running = null;

// presets fill the form. The first is the default.
const presets = {
  "Small: learns something within a minute on a laptop's GPU":
    {d_model: 64, n_layers: 2, n_heads: 4, seq_len: 64, batch_size: 8, steps: 500, optimizer: "muon"},
  "Tiny: seconds, also without a GPU":
    {d_model: 32, n_layers: 1, n_heads: 2, seq_len: 32, batch_size: 4, steps: 200, optimizer: "muon"},
  "Medium: the model of the demo, for a laptop's GPU":
    {d_model: 128, n_layers: 4, n_heads: 4, seq_len: 128, batch_size: 16, steps: 400, optimizer: "muon"},
  "Large: 5 million parameters, for a desktop's GPU":
    {d_model: 256, n_layers: 6, n_heads: 8, seq_len: 256, batch_size: 16, steps: 2000, optimizer: "muon"},
};
const custom = "Custom";
const modelFields = ["d_model", "n_layers", "n_heads", "seq_len"];
const fields = [...modelFields, "batch_size", "steps", "optimizer"];

// fill shows a preset in the form. config reads the form.
function fill(name) {
  for (const key of fields) $(key).value = presets[name][key];
  requestAnimationFrame(draw);
}

function config(base) {
  const c = structuredClone(base), number = (key) => Number($(key).value);
  for (const key of modelFields) c.model[key] = number(key);
  c.model.n_kv_heads = c.model.n_heads;
  c.model.ffn.d_ff = Math.ceil(c.model.d_model * 8 / 3 / 16) * 16;
  c.batch_size = number("batch_size");
  c.steps = number("steps");
  c.warmup = Math.min(c.warmup, Math.ceil(c.steps / 10));
  c.optimizer = $("optimizer").value;
  return c;
}

function setUpForm() {
  for (const name of [...Object.keys(presets), custom]) $("preset").add(new Option(name, name));
  $("preset").lastChild.hidden = true; // chosen by editing a field
  $("preset").onchange = () => fill($("preset").value);
  $("form").oninput = (e) => {
    if (!fields.includes(e.target.id)) return;
    $("preset").value = custom;
    requestAnimationFrame(draw);
  };
  fill($("preset").value);
}

function note(text, kind) {
  const line = document.createElement("div");
  line.textContent = text;
  line.className = kind || "";
  $("log").append(line);
}

const complain = (e) => note(e.message || String(e), "error");

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
  $("log").textContent = $("sample").textContent = $("state").textContent = "";
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

// ticks are about n round numbers from lo to hi.
function ticks(lo, hi, n) {
  let step = 10 ** Math.floor(Math.log10((hi - lo) / n));
  for (const by of [5, 2]) {
    if (step * by <= (hi - lo) / n) {
      step *= by;
      break;
    }
  }
  const out = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step; i++) out.push(Number((i * step).toPrecision(10)));
  return out;
}

// draw draws the axes, and the losses so far. Before the first step the loss axis ends at that of a uniform guess.
function draw() {
  const canvas = $("chart"), g = canvas.getContext("2d"), scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight, left = 52, right = width - 8, top = 10, bottom = height - 42;
  canvas.width = width * scale;
  canvas.height = height * scale;
  g.scale(scale, scale);
  g.font = "12px system-ui, sans-serif";
  const steps = Math.max(1, Number($("steps").value) || 0, losses.length), high = Math.max(Math.log(256), ...losses) * 1.04;
  const x = (step) => left + (right - left) * step / steps, y = (loss) => bottom - (bottom - top) * loss / high;
  const line = (x0, y0, x1, y1, color) => {
    g.strokeStyle = color;
    g.beginPath();
    g.moveTo(x0, y0);
    g.lineTo(x1, y1);
    g.stroke();
  };
  g.fillStyle = "#444";
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const l of ticks(0, high, 4)) {
    line(left, y(l), right, y(l), "#e6e6e6");
    g.fillText(l, left - 6, y(l));
  }
  g.textAlign = "center";
  g.textBaseline = "top";
  for (const s of ticks(0, steps, 6)) {
    line(x(s), bottom, x(s), bottom + 4, "#888");
    g.fillText(s, Math.min(x(s), right - 10), bottom + 7);
  }
  line(left, bottom, right, bottom, "#888");
  line(left, top, left, bottom, "#888");
  g.fillText("step", (left + right) / 2, bottom + 24);
  g.save();
  g.translate(6, (top + bottom) / 2);
  g.rotate(-Math.PI / 2);
  g.fillText("loss (nats per byte)", 0, 0);
  g.restore();
  g.strokeStyle = "#0072b2";
  g.lineWidth = 1.6;
  g.beginPath();
  losses.forEach((l, i) => i ? g.lineTo(x(i + 1), y(l)) : g.moveTo(x(i + 1), y(l)));
  g.stroke();
}

// showDevice shows the state of the device; kind is "error" or nothing.
function showDevice(text, kind) {
  $("device").textContent = text;
  $("device").className = kind || "";
}

const advice = "Try a current Chrome, Edge, Safari or Firefox; on Linux chrome://flags/#enable-unsafe-webgpu may help.";
const slowAfter = 3000; // milliseconds

// findGPU checks that the browser has WebGPU and an adapter, before the program is loaded. It reports a browser that does
// not answer.
async function findGPU() {
  if (!isSecureContext) throw new Error("WebGPU needs a secure page: open this one over https, or from localhost.");
  if (!navigator.gpu) throw new Error(`This browser has no WebGPU. ${advice}`);
  const warn = () => showDevice(`This browser has WebGPU, but it has not answered yet. ${advice}`, "error");
  const slow = setTimeout(warn, slowAfter);
  try {
    const adapter = await navigator.gpu.requestAdapter({powerPreference: "high-performance"});
    if (!adapter) throw new Error(`This browser has WebGPU, but no GPU for it. ${advice}`);
  } finally {
    clearTimeout(slow);
  }
}

// gpupipeReady is called by trainer.wasm.
globalThis.gpupipeReady = async () => {
  const base = JSON.parse(gpupipe.defaults());
  const chosen = $("optimizer").value;
  $("optimizer").replaceChildren(...JSON.parse(gpupipe.optimizers()).map((name) => new Option(name)));
  $("optimizer").value = chosen;
  try {
    showDevice(`Your GPU: ${await gpupipe.adapter()}.`);
  } catch (e) {
    showDevice(`${e.message}. ${advice}`, "error");
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
  setUpForm();
  onresize = draw;
  try {
    await findGPU();
  } catch (e) {
    showDevice(e.message, "error");
    return;
  }
  try {
    showDevice("Found a GPU. Loading the program …");
    const go = new Go();
    const {instance} = await WebAssembly.instantiate(await load("trainer.wasm"), go.importObject);
    await go.run(instance);
    throw new Error("the program has ended: the browser's console says why");
  } catch (e) {
    showDevice("The program could not be loaded or has stopped; the log below says why.", "error");
    complain(e);
  }
})();
