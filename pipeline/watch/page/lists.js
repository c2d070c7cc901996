// Lists: the runs, the newest values, events and samples. All texts are set as text, never as HTML.

import * as format from "./format.js";
import { number } from "./store.js";

const byId = (id) => document.getElementById(id);

function node(kind, className, content) {
  const n = document.createElement(kind);
  if (className) n.className = className;
  if (content !== undefined) n.textContent = content;
  return n;
}

// RunList is the list of all runs, with a checkbox to show each.
export class RunList {
  constructor(app) {
    this.app = app;
    this.items = new Map();
  }

  draw(summaries, state) {
    byId("run-count").textContent = state.total || "";
    byId("no-runs").hidden = state.total > 0;
    byId("run-search").hidden = state.total < 8 && !state.search;
    byId("more-runs").hidden = summaries.length >= state.total;
    byId("more-runs").textContent = summaries.length === 0 ? "No run has this name." : `${format.count(summaries.length)} of ${format.count(state.total)} runs. Search for others.`;
    const list = byId("run-list");
    const names = new Set(summaries.map((s) => s.name));
    for (const [name, item] of this.items) {
      if (names.has(name)) continue;
      item.li.remove();
      this.items.delete(name);
    }
    for (const s of summaries) {
      if (!this.items.has(s.name)) {
        this.items.set(s.name, this.item(s.name));
        list.append(this.items.get(s.name).li);
      }
      this.fill(this.items.get(s.name), s, state);
    }
    const order = summaries.map((s) => this.items.get(s.name).li);
    if (order.some((li, i) => list.children[i] !== li)) {
      const focused = document.activeElement;
      list.replaceChildren(...order);
      if (list.contains(focused)) focused.focus();
    }
  }

  item(name) {
    const li = node("li"), box = node("input"), button = node("button"), swatch = node("span", "swatch");
    box.type = "checkbox";
    box.setAttribute("aria-label", `Show ${name}`);
    box.addEventListener("change", () => this.app.show(name, box.checked));
    button.type = "button";
    button.append(swatch, name);
    button.addEventListener("click", () => this.app.focus(name));
    const progress = node("progress"), line = node("p", "line"), trouble = node("p", "line trouble");
    progress.setAttribute("aria-label", `Progress of ${name}`);
    li.append(box, button, progress, line, trouble);
    return { li, box, button, progress, line, trouble };
  }

  fill(item, s, state) {
    const run = state.shown.find((r) => r.name === s.name);
    item.box.checked = Boolean(run);
    item.li.style.setProperty("--run", run ? run.color : "");
    item.li.className = state.focus?.name === s.name ? "focus" : "";
    item.button.setAttribute("aria-pressed", String(item.li.className === "focus"));
    item.progress.hidden = s.steps === 0;
    item.progress.max = Math.max(1, s.steps);
    item.progress.value = Math.min(s.step, s.steps);
    const facts = [s.steps ? `${format.count(s.step)} / ${format.count(s.steps)}` : `step ${format.count(s.step)}`];
    if (s.loss !== null) facts.push(`loss ${format.loss(number(s.loss))}`);
    if (s.left_s !== undefined && s.left_s !== null) facts.push(`${format.duration(s.left_s)} left`);
    item.line.replaceChildren(node("span", `state ${s.state}`, s.state), ` · ${facts.join(" · ")}`);
    item.trouble.hidden = !s.problem;
    item.trouble.textContent = s.problem ?? "";
  }
}

// drawFacts shows the newest values of the run in focus.
export function drawFacts(run, several) {
  const section = byId("facts");
  section.hidden = !run || run.step() === undefined;
  if (section.hidden) return;
  const s = run.summary ?? {}, memory = run.matching(/^system\/ranks\.(\d+)\/memory$/).reduce((sum, { name }) => sum + (run.last(name) ?? 0), 0);
  const busy = run.matching(/^system\/ranks\.(\d+)\/busy$/).map(({ name }) => run.last(name)).filter((x) => x !== undefined);
  const facts = [
    ["Step", format.count(run.step()), s.steps ? ` of ${s.steps < 1e5 ? format.count(s.steps) : format.short(s.steps)}` : ""],
    ["Loss", format.loss(run.last("loss"))],
    ["Held-out loss", format.loss(run.last("val_loss"))],
    ["Tokens/s", format.short(run.last("tokens_per_s"))],
    ["MFU", format.percent(run.last("system/mfu"))],
    ["Busy", busy.length ? format.percent(busy.reduce((a, b) => a + b, 0) / busy.length) : "–"],
    ["Memory", memory ? format.bytes(memory) : "–"],
    ["Left", format.duration(s.left_s)],
  ].filter(([, value]) => value !== "–");
  const title = node("h2", "", several ? run.name : describe(run) || run.name);
  if (several && describe(run)) title.append(node("span", "quiet", `  ${describe(run)}`));
  section.replaceChildren(title, ...facts.map(([name, value, rest]) => {
    const dl = node("dl", "fact"), dd = node("dd", "", value);
    dl.style.margin = "0";
    if (rest) dd.append(node("small", "", rest));
    dl.append(node("dt", "", name), dd);
    return dl;
  }));
}

// describe is a line about a run: its model, optimizer and pipeline.
function describe(run) {
  const { start = {}, config = {} } = run.about ?? {};
  const parameters = start.parameters > 0 ? `${format.short(start.parameters)} parameters` : "";
  const stages = config.stages > 1 ? `${config.schedule} on ${config.stages} stages` : "";
  const devices = [...new Set((start.ranks ?? []).map((r) => r.hardware || r.device).filter(Boolean))].join(", ");
  return [config.arch, parameters, config.optimizer, config.precision, stages, devices].filter(Boolean).join(" · ");
}

const alarms = new Set(["restart", "fault", "skipped", "error"]);

// drawEvents lists the events of a run, the newest first.
export function drawEvents(run) {
  const events = events_of(run);
  byId("events").hidden = events.length === 0;
  byId("event-list").replaceChildren(...events.slice(0, 200).map((e) => {
    const li = node("li", alarms.has(e.event) ? "alarm" : ""), what = node("div");
    li.append(node("span", "when", format.clock(e.time) || `step ${format.count(e.step)}`));
    what.append(node("span", "kind", e.event), node("span", "quiet", e.time && e.step ? `step ${format.count(e.step)} ` : ""), e.text);
    li.append(what);
    return li;
  }));
}

// events_of are the events that the run wrote. Runs of earlier versions wrote none: theirs are skipped batches and restarts.
function events_of(run) {
  const written = run?.about?.events ?? [];
  if (written.length > 0) return [...written].reverse();
  const events = (run?.about?.restarts ?? []).map((r) => ({ event: "restart", step: r.Step, text: r.Fault }));
  const skipped = run?.column("skipped") ?? [];
  skipped.forEach((v, i) => { if (v) events.push({ event: "skipped", step: run.steps[i], text: "the batch was skipped" }); });
  return events.sort((a, b) => b.step - a.step);
}

// marks are the places of events on the loss chart, by color.
export function marks(run, axis) {
  const found = { "--bad": [], "--warn": [], "--quiet": [] };
  const colors = { restart: "--bad", fault: "--bad", skipped: "--warn", resume: "--quiet" };
  for (const e of run ? events_of(run) : []) {
    const at = place(run, axis, e.step);
    if (colors[e.event] && at !== null) found[colors[e.event]].push(at);
  }
  return found;
}

// place is where a step is on the axis.
function place(run, axis, step) {
  if (axis === "step") return step;
  const i = run.steps.findIndex((s) => s >= step);
  return i < 0 ? null : run.axis(axis)[i];
}

// drawSamples lists the texts that the run sampled, the newest first.
export function drawSamples(run) {
  const samples = [...(run?.about?.samples ?? [])].reverse();
  byId("samples").hidden = samples.length === 0;
  byId("sample-list").replaceChildren(...samples.map((s) => {
    const li = node("li");
    li.append(node("span", "quiet", `step ${format.count(s.step)}`), node("blockquote", "", s.text));
    return li;
  }));
}

// drawConfig shows the run's config.
export function drawConfig(run) {
  const text = run?.about?.config?.text ?? "";
  byId("config").hidden = text === "";
  byId("config-text").textContent = text;
}
