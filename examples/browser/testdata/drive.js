"use strict";
// Uses the page as a person would, as the scenario in its URL says, and posts what came of it. The test adds it to the page.

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
    set({...tiny, d_model: 10000});
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
  async broken() { await until(failed); },
};

(async () => {
  const scenario = new URLSearchParams(location.search).get("scenario");
  const result = {};
  try {
    if (scenario !== "broken") await until(() => !$("start").disabled || $("adapter").className === "error");
    if ($("start").disabled && scenario !== "broken") throw new Error($("adapter").textContent);
    await scenarios[scenario]();
    result.config = scenario === "hooks" ? config(JSON.parse(gpupipe.defaults())) : null;
    draw();
    const g = $("chart").getContext("2d");
    result.drawn = g.getImageData(0, 0, $("chart").width, $("chart").height).data.some((x) => x !== 0);
  } catch (e) {
    result.error = String(e.stack || e);
  }
  Object.assign(result, {losses, sample: $("sample").textContent, log: $("log").textContent, state: $("state").textContent});
  fetch("/result", {method: "POST", body: JSON.stringify(result)});
})();
