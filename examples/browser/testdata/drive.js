"use strict";
// Uses the page as a person would, in the scenario that its URL names, and posts the result. The test adds it to the
// page.

const until = async (done) => { while (!done()) await new Promise((r) => setTimeout(r, 20)); };
const set = (values) => { for (const key in values) $(key).value = values[key]; };
const choose = async (id, url, name) => {
  const files = new DataTransfer();
  files.items.add(new File([await load(url)], name));
  $(id).files = files.files;
};
const failed = () => document.querySelector("#log .error");
const tiny = {d_model: 32, n_layers: 2, n_heads: 2, seq_len: 16, batch_size: 2, steps: 30, prompt: "The"};

const run = () => $("start").onclick(); // a click, and a promise of the end

const scenarios = {
  async hooks() {
    set({...tiny, build_loss_config: '{"gamma": 2, "z": 0.01}', learning_rate_config: '{"warmup": 4}'});
    await choose("text", "text", "text.txt");
    await choose("build_loss", "hooks/focal_loss.wasm", "focal_loss.wasm");
    await choose("learning_rate", "hooks/inverse_sqrt.wasm", "inverse_sqrt.wasm");
    await run();
  },
  async stop() {
    set({...tiny, steps: 100000});
    const ended = run();
    await until(() => losses.length > 2);
    $("stop").click();
    await ended;
  },
  async mistakes() {
    set({...tiny, steps: 2, d_model: 33});
    await run();
    const complaints = [$("log").textContent];
    set({...tiny, d_model: 16384, n_heads: 64});
    await run();
    complaints.push($("log").textContent);
    set({...tiny, steps: 2, build_loss_config: '{"gamma": "two"}'});
    await choose("build_loss", "hooks/focal_loss.wasm", "focal_loss.wasm");
    await run();
    complaints.push($("log").textContent);
    set({build_loss_config: "gamma"});
    await run();
    complaints.push($("log").textContent);
    set({build_loss_config: "{}"});
    await choose("build_loss", "text", "text.txt");
    await run();
    $("log").prepend(complaints.join("\n"));
  },
  // The form with each preset, and the plot before a run.
  async presets() {
    const configs = [];
    for (const option of $("preset").options) {
      if (option.value === custom) continue;
      $("preset").value = option.value;
      $("preset").dispatchEvent(new Event("change"));
      configs.push(config(JSON.parse(gpupipe.defaults())));
    }
    $("steps").value = 7;
    $("steps").dispatchEvent(new Event("input", {bubbles: true}));
    return {presets: configs, preset: $("preset").value, optimizers: [...$("optimizer").options].map((o) => o.value)};
  },
  async broken() { await until(failed); },
  // Browsers without WebGPU, or without an adapter, or that never answer: see before.js.
  async no_webgpu() {},
  async no_adapter() {},
  async silent() {},
};

const without = ["no_webgpu", "no_adapter", "silent"];

// colored is the number of pixels of the plot that are of the curve's color, and that are of any.
const colored = () => {
  const g = $("chart").getContext("2d"), {data} = g.getImageData(0, 0, $("chart").width, $("chart").height);
  let curve = 0, any = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3]) any++;
    if (data[i + 2] > data[i] + 100) curve++;
  }
  return {curve, any};
};

(async () => {
  const scenario = new URLSearchParams(location.search).get("scenario");
  const result = {};
  try {
    if (scenario !== "broken") await until(() => !$("start").disabled || $("device").className === "error");
    result.seconds = performance.now() / 1000;
    if ($("start").disabled && scenario !== "broken" && !without.includes(scenario)) throw new Error($("device").textContent);
    Object.assign(result, await scenarios[scenario]());
    result.config = scenario === "hooks" ? config(JSON.parse(gpupipe.defaults())) : null;
    draw();
    result.pixels = colored();
  } catch (e) {
    result.error = String(e.stack || e);
  }
  Object.assign(result, {losses, device: $("device").textContent, startable: !$("start").disabled, sample: $("sample").textContent, log: $("log").textContent, state: $("state").textContent});
  fetch("/result", {method: "POST", body: JSON.stringify(result)});
})();
