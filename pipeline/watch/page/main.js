// The page: takes the stream of server-sent events and draws what it brings.

import { Charts, color } from "./charts.js";
import { drawExperts } from "./experts.js";
import { RunList, drawConfig, drawEvents, drawFacts, drawSamples, marks } from "./lists.js";
import { drawPipeline } from "./pipeline.js";
import { Run } from "./store.js";
import { open } from "./stream.js";

const byId = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);

// state is what the page shows. The runs that the server chose are not in the address.
const state = {
  runs: new Map(), shown: [], focus: null, chosen: query.getAll("run"), wanted: query.get("focus") ?? "",
  axis: query.get("axis") ?? "step", zoom: null, smooth: Number(keep("smooth") ?? 0), log: keep("log") === "1", marks: {}, summaries: [], total: 0,
  search: "", picture: null, loads: null,
};

function keep(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`gpupipe-${name}`);
    localStorage.setItem(`gpupipe-${name}`, value);
  } catch { /* storage is off: the choice lasts as long as the page */ }
  return null;
}

let close = null, scheduled = false, dirty = new Set();

// redraw draws at the next frame what has changed: "rows", "about", "runs", "pipeline", "experts".
function redraw(...what) {
  for (const w of what.length ? what : ["rows", "about", "runs", "pipeline", "experts"]) dirty.add(w);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

// drawn is what a test reads: how often the page drew, how many points, and how long the last drawing took.
const drawn = { frames: 0, points: 0, parseMillis: 0, drawMillis: 0, firstMillis: 0 };


function draw() {
  scheduled = false;
  const what = dirty, began = performance.now();
  dirty = new Set();
  if (what.has("rows") || what.has("about")) {
    state.marks = marks(state.focus, state.axis);
    drawn.points = charts.draw(state);
    drawFacts(state.focus, state.shown.length > 1);
    drawEvents(state.focus);
  }
  if (what.has("about")) {
    drawSamples(state.focus);
    drawConfig(state.focus);
  }
  if (what.has("runs")) list.draw(state.summaries, state);
  if (what.has("pipeline")) drawPipeline(state.picture, state.focus?.about?.config?.schedule);
  if (what.has("experts")) drawExperts(state.loads);
  drawn.frames++;
  drawn.drawMillis = performance.now() - began;
  if (drawn.points > 0 && drawn.firstMillis === 0) drawn.firstMillis = performance.now();
}

const app = {
  redraw,
  // range is that of the horizontal axis.
  range: (least, most) => state.zoom ?? (least === null ? [0, 1] : least === most ? [least - 1, most + 1] : [least, most]),
  zoom(from, to) {
    state.zoom = [from, to];
    connect();
    redraw();
  },
  show(name, on) {
    state.chosen = state.shown.map((r) => r.name).filter((n) => n !== name);
    if (on) state.chosen.push(name);
    connect();
  },
  focus(name) {
    state.wanted = name;
    if (!state.shown.some((r) => r.name === name)) state.chosen = [...state.shown.map((r) => r.name), name];
    connect();
  },
};

const charts = new Charts(app), list = new RunList(app);
globalThis.gpupipeWatch = { state, drawn, zoom: app.zoom };

// address is the query of the present view.
function address() {
  const q = new URLSearchParams();
  for (const name of state.chosen) q.append("run", name);
  if (state.wanted) q.set("focus", state.wanted);
  if (state.axis !== "step") q.set("axis", state.axis);
  return q;
}

// connect opens a stream of the present view, in place of the one before.
function connect() {
  close?.();
  const q = address();
  history.replaceState(null, "", (q.size > 0 ? `?${q}` : location.pathname) + location.hash);
  if (state.zoom) {
    q.set("from", state.zoom[0]);
    q.set("to", state.zoom[1]);
  }
  byId("reset").hidden = !state.zoom;
  if (state.search) q.set("search", state.search);
  close = open(`stream?${q}`, take, connection);
}

// take takes an event of the stream.
function take(kind, text) {
  const began = performance.now();
  takers[kind]?.(JSON.parse(text));
  if (kind === "rows") drawn.parseMillis = performance.now() - began;
}

function connection(kind, text) {
  const p = byId("connection");
  p.dataset.state = kind;
  if (p.textContent !== text) p.textContent = text;
}

function run(name) {
  if (!state.runs.has(name)) state.runs.set(name, new Run(name));
  return state.runs.get(name);
}

const takers = {
  runs({ runs, total, shown, focus }) {
    Object.assign(state, { summaries: runs, total });
    for (const s of runs) if (state.runs.has(s.name) || shown.includes(s.name)) run(s.name).summary = s;
    const before = state.shown.map((r) => r.name).join("\n"), focused = state.focus?.name;
    state.shown = shown.filter((name) => runs.some((r) => r.name === name)).map(run);
    paint();
    state.focus = state.shown.find((r) => r.name === focus) ?? state.shown[0] ?? null;
    for (const r of state.runs.values()) if (r !== state.focus) r.newest = null; // only that of the run in focus is sent
    if (focused !== state.focus?.name) state.picture = state.loads = null;
    if (before === state.shown.map((r) => r.name).join("\n") && focused === state.focus?.name) redraw("runs");
    else redraw();
  },
  about(about) {
    run(about.name).about = about;
    redraw("about", "pipeline");
  },
  rows(rows) {
    run(rows.name).take(rows);
    redraw("rows");
  },
  newest(values) {
    run(values.name).takeNewest(values);
    redraw("rows");
  },
  pipeline({ name, picture }) {
    if (name === state.focus?.name) state.picture = picture;
    redraw("pipeline");
  },
  experts({ name, loads }) {
    if (name === state.focus?.name) state.loads = loads;
    redraw("experts");
  },
};

// paint gives each shown run a color, which it keeps while it is shown.
function paint() {
  const taken = new Set();
  for (const r of state.shown) {
    if (r.slot === undefined || taken.has(r.slot)) r.slot = undefined;
    else taken.add(r.slot);
  }
  for (const r of state.shown) {
    if (r.slot === undefined) for (r.slot = 0; taken.has(r.slot); r.slot++);
    taken.add(r.slot);
    r.color = color(r.slot);
  }
  for (const r of state.runs.values()) if (!state.shown.includes(r)) r.slot = undefined;
}

function restyle() {
  paint();
  charts.restyle();
  redraw();
}

for (const input of document.querySelectorAll("input[name=axis]")) {
  input.checked = input.value === state.axis;
  input.addEventListener("change", () => {
    state.axis = input.value;
    state.zoom = null;
    connect();
    redraw();
  });
}
byId("smooth").value = state.smooth;
byId("smooth").addEventListener("input", (event) => {
  state.smooth = Number(event.target.value);
  keep("smooth", state.smooth);
  redraw("rows");
});
byId("log").checked = state.log;
byId("log").addEventListener("change", (event) => {
  state.log = event.target.checked;
  keep("log", state.log ? "1" : "0");
  redraw("rows");
});
let typing = 0;
byId("run-search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    state.search = event.target.value.trim();
    connect();
  }, 200);
});
byId("reset").addEventListener("click", () => {
  state.zoom = null;
  connect();
  redraw();
});
document.getElementById("charts").addEventListener("dblclick", (event) => {
  if (state.zoom && event.target.closest(".uplot")) byId("reset").click();
});
const dark = matchMedia("(prefers-color-scheme: dark)");
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  keep("theme", root.dataset.theme);
  restyle();
});
dark.addEventListener("change", restyle);
new ResizeObserver(() => redraw("pipeline")).observe(byId("pipeline-picture"));
new ResizeObserver(() => redraw("experts")).observe(byId("loads-picture"));
connect();
