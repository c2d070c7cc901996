// The charts: which columns each shows, and how.

import uPlot from "./uplot/uPlot.js";
import * as format from "./format.js";
import { smoothed } from "./store.js";

const palette = 8;

// color is the n-th color of lines, as CSS has it now.
export const color = (n) => css(`--c${n % palette}`);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const dim = (hex) => hex + "55";

// charts lists what is drawn: of every shown run, or of the one in focus only. Each entry's lines are columns.
const charts = [
  { id: "loss", title: "Loss", unit: format.loss, lines: lossLines, tall: true, note: "nats per token" },
  { id: "lr", title: "Learning rate", unit: format.short, lines: column("lr") },
  { id: "grad_norm", title: "Gradient norm", unit: format.short, lines: column("grad_norm") },
  { id: "tokens_per_s", title: "Tokens per second", unit: format.short, lines: column("tokens_per_s"), zero: true },
  { id: "mfu", title: "MFU", unit: format.percent, lines: column("system/mfu"), zero: true, note: "model FLOPs utilization" },
  { id: "memory", title: "Memory", unit: format.bytes, lines: parts(/^system\/ranks\.(\d+)\/memory$/, rankName), zero: true, steps: binarySteps() },
  { id: "busy", title: "Utilization", unit: format.percent, lines: parts(/^system\/ranks\.(\d+)\/busy$/, rankName), zero: true, note: "share of the time in which a stage computes" },
  { id: "experts", title: "Expert load", unit: format.short, lines: parts(/^layers\.(\d+)\/load_max$/, (layer) => `layer ${layer}`), zero: true, note: "largest over mean" },
];

// known are the columns that charts above show, or that are no measurements.
const known = /^(loss|val_loss|lr|grad_norm|tokens_per_s|tokens|elapsed|time|system\/mfu|system\/ranks\.\d+\/(memory|busy)|layers\.\d+\/load_max)$/;

// binarySteps are distances between labels of memory.
function binarySteps() { return Array.from({ length: 50 }, (_, i) => 2 ** i); }

// column is a line of each shown run.
function column(name) {
  return (state) => state.shown.map((run) => ({ run, name, label: run.name, color: run.color }));
}

// parts are several lines of the run in focus.
function parts(pattern, label) {
  return ({ focus }) => (focus ? focus.matching(pattern).map(({ name, part }, i) => ({ run: focus, name, label: label(part, focus), color: color(i) })) : []);
}

function rankName(index, run) { return run.about?.start?.ranks?.[index]?.name || `rank ${index}`; }

function lossLines(state) {
  const lines = [];
  for (const run of state.shown) {
    if (state.smooth > 0) lines.push({ run, name: "loss", label: run.name, color: dim(run.color), raw: true });
    lines.push({ run, name: "loss", label: run.name, color: run.color, smooth: state.smooth, width: 1.6 });
    if (run.column("val_loss")) lines.push({ run, name: "val_loss", label: `${run.name}, held out`, color: run.color, dash: [6, 4], points: true });
  }
  return lines;
}

// timeSteps are distances between labels of times in seconds: each is a usual part of a minute, an hour or a day.
const timeSteps = [...[0.001, 0.01, 0.1].flatMap((n) => [n, 2 * n, 5 * n]), 1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => 60 * n),
  ...[1, 2, 3, 6, 12].map((n) => 3600 * n), ...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => 86400 * n)];

const axisFormats = { step: format.short, tokens: format.short, elapsed: format.duration };
const axisTitles = { step: "step", tokens: "tokens", elapsed: "time since the first step" };

// Chart is one card with a chart.
class Chart {
  constructor(parent, spec, app) {
    Object.assign(this, { spec, app, plot: null, shape: "" });
    this.card = parent;
    const heading = document.createElement("h2");
    heading.textContent = spec.title + " ";
    this.note = document.createElement("span");
    this.note.className = "quiet";
    heading.append(this.note);
    this.body = document.createElement("div");
    this.body.setAttribute("role", "img");
    this.card.append(heading, this.body);
    this.card.dataset.chart = spec.id;
    new ResizeObserver(() => requestAnimationFrame(() => this.resize())).observe(this.body);
  }

  size() { return { width: Math.max(100, this.body.clientWidth), height: this.spec.tall ? 300 : 180 }; }

  resize() {
    if (this.plot && this.plot.width !== this.size().width) this.plot.setSize(this.size());
  }

  // draw shows the present data, and returns how many points it drew.
  draw(state) {
    const lines = this.spec.lines(state).filter((l) => l.run.column(l.name));
    this.card.hidden = lines.length === 0;
    if (this.card.hidden) return 0;
    const whose = this.spec.lines === lossLines || state.shown.length < 2 || lines.some((l) => l.run !== state.focus) ? "" : state.focus.name;
    this.note.textContent = [this.spec.note, whose].filter(Boolean).join(" · ");
    const tables = lines.map((line) => {
      const { xs, ys, odd } = line.run.points(line.name, state.axis);
      line.odd = odd;
      return [xs, line.smooth ? smoothed(ys, line.smooth) : ys];
    });
    this.lines = lines;
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const shape = JSON.stringify([state.axis, state.log, lines.map((l) => [l.label, l.color, l.raw, l.dash])]);
    if (shape === this.shape) {
      this.plot.setData(data);
    } else {
      this.shape = shape;
      this.plot?.destroy();
      this.plot = new uPlot(this.options(lines, state), data, this.body);
    }
    this.describe(lines);
    return tables.reduce((n, t) => n + t[0].length, 0);
  }

  // describe gives screen readers the newest values.
  describe(lines) {
    const values = lines.filter((l) => !l.raw).map((l) => `${l.label}: ${this.spec.unit(l.run.last(l.name))}`);
    this.body.setAttribute("aria-label", `${this.spec.title}. ${values.join(", ")}`);
  }

  options(lines, state) {
    const ink = css("--quiet"), grid = { stroke: css("--grid"), width: 1 }, unit = this.spec.unit;
    const series = lines.map((l) => ({
      label: l.label, stroke: l.color, width: l.width ?? 1.3, dash: l.dash, spanGaps: false, class: l.raw ? "raw" : undefined,
      points: { show: l.points === true, size: 5, filter: (u, i) => (l.points ? null : lonely(u.data[i])) },
      value: (u, v, i, at) => (Number.isFinite(v) ? unit(v) : format.odd(this.lines[i - 1]?.odd.get(u.data[0][at]))),
    }));
    const log = state.log && this.spec.id === "loss";
    return {
      ...this.size(),
      padding: [10, 12, 0, 4],
      series: [{ label: axisTitles[state.axis], value: (_, v) => (v === null ? "–" : axisFormats[state.axis](v, 6)) }, ...series],
      scales: {
        x: { time: false, range: (_, least, most) => this.app.range(least, most) },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, least, most) => this.span(least, most) },
      },
      axes: [
        { stroke: ink, grid, ticks: grid, font: "11px system-ui", size: 32, ...(state.axis === "elapsed" ? { incrs: timeSteps, space: 84 } : {}),
          values: (_, ticks) => ticks.map((x) => (state.axis === "elapsed" ? format.span(x) : axisFormats[state.axis](x))) },
        { stroke: ink, grid, ticks: grid, font: "11px system-ui", size: 58, ...(this.spec.steps ? { incrs: this.spec.steps } : {}), values: (_, ticks) => ticks.map((y) => (y === null ? "" : label(unit, y))) },
      ],
      // The cursors of all charts move together, and a selection is in one chart.
      cursor: { sync: { key: "x", setSeries: false, filters: { pub: passes, sub: passes } }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      legend: { live: true },
      hooks: {
        setSelect: [(u) => {
          const { left, width } = u.select;
          if (width <= 4) return;
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.app.zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
        }],
        drawAxes: [(u) => this.mark(u, state)],
        draw: [(u) => this.markOdd(u)],
      },
    };
  }

  // span is the range of the vertical axis.
  span(least, most) {
    if (least === null) return [0, 1];
    if (this.spec.zero) return [Math.min(0, least), most > 0 ? 1.08 * most : 1];
    const pad = 0.06 * (most - least) || Math.abs(most) * 0.1 || 1;
    return [least - pad, most + pad];
  }

  // markOdd writes NaN or ∞ at the upper end of the chart where a value is not finite. Names that would overlap are left
  // out, and a tick remains.
  markOdd(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `bold ${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    this.lines.filter((l) => !l.raw).forEach((line, row) => {
      ctx.fillStyle = line.color;
      let free = -Infinity;
      for (const [x, value] of line.odd) {
        const at = u.valToPos(x, "x", true), text = format.odd(value), half = ctx.measureText(text).width / 2;
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        ctx.fillRect(at - ratio, bbox.top, 2 * ratio, 5 * ratio);
        if (at - half < free) continue;
        const middle = Math.min(Math.max(at, bbox.left + half), bbox.left + bbox.width - half);
        ctx.fillText(text, middle, bbox.top + (6 + 12 * row) * ratio);
        free = middle + half + 4 * ratio;
      }
    });
    ctx.restore();
  }

  // mark draws a line at each restart, resumption and skipped batch of the run in focus.
  mark(u, state) {
    if (this.spec.id !== "loss") return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.setLineDash([2, 3]);
    for (const [name, xs] of Object.entries(state.marks)) {
      ctx.strokeStyle = css(name);
      for (const x of xs) {
        const at = Math.round(u.valToPos(x, "x", true));
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
      }
    }
    ctx.restore();
  }
}

// passes reports whether an event of a chart's mouse is for the other charts: movements are, and the buttons are not.
function passes(type) { return type === "mousemove" || type === "mouseleave" || type === "mouseenter"; }

// lonely are the points without a neighbor to draw a line to.
function lonely(values) {
  const found = [], there = (i, step) => {
    while (values[i] === undefined && i >= 0 && i < values.length) i += step;
    return Number.isFinite(values[i]);
  };
  values.forEach((v, i) => { if (Number.isFinite(v) && !there(i - 1, -1) && !there(i + 1, 1)) found.push(i); });
  return found;
}

// label is a short text for the vertical axis.
function label(unit, y) {
  if (unit === format.loss) return String(Number(y.toPrecision(4)));
  if (unit === format.percent) return Math.round(100 * y) + " %";
  return unit(y);
}

// Charts draws all charts.
export class Charts {
  constructor(app) {
    this.app = app;
    this.charts = charts.map((spec) => {
      const parent = spec.id === "loss" ? document.getElementById("loss") : this.card("grid");
      return new Chart(parent, spec, app);
    });
    this.more = new Map();
    this.details = document.getElementById("more");
    this.details.addEventListener("toggle", () => app.redraw());
  }

  card(grid) {
    const card = document.createElement("section");
    card.className = "card";
    document.getElementById(grid).append(card);
    return card;
  }

  // draw returns how many points were drawn.
  draw(state) {
    let points = 0;
    for (const chart of this.charts) points += chart.draw(state);
    const others = new Set();
    for (const run of state.shown) for (const name of run.columns.keys()) if (!known.test(name)) others.add(name);
    this.details.hidden = others.size === 0;
    if (!this.details.open) return points;
    for (const name of [...others].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, 60)) {
      if (!this.more.has(name)) {
        this.more.set(name, new Chart(this.card("more-grid"), { id: name, title: name, unit: format.short, lines: column(name) }, this.app));
      }
    }
    for (const chart of this.more.values()) points += chart.draw(state);
    return points;
  }

  // restyle draws with the colors of another theme.
  restyle() { for (const chart of [...this.charts, ...this.more.values()]) chart.shape = ""; }
}
