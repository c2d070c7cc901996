// The drawing of the pipeline: the runs of each rank during a batch, the bubbles between them, and their shares.

import * as format from "./format.js";

const space = "http://www.w3.org/2000/svg";
const rowHeight = 26, gap = 8, barHeight = 16;

function shape(kind, attributes, parent) {
  const node = document.createElementNS(space, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

function text(content, attributes, parent) {
  const node = shape("text", attributes, parent);
  node.textContent = content;
  return node;
}

// drawPipeline draws a picture into the page.
export function drawPipeline(picture, schedule) {
  const card = document.getElementById("pipeline"), body = document.getElementById("pipeline-picture");
  card.hidden = !picture;
  if (!picture) return;
  const width = Math.max(280, body.clientWidth || card.clientWidth - 30);
  const narrow = width < 560, labels = narrow ? 0 : 96, bars = narrow ? 0 : 164;
  const row = narrow ? rowHeight + 38 : rowHeight + gap;
  const height = picture.ranks.length * row + 24;
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  const busy = picture.ranks.map((r) => `${r.name} ${format.percent(1 - r.bubble)}`).join(", ");
  svg.setAttribute("aria-label", `Batch ${picture.batch}: ${format.micros(picture.span)}. Busy: ${busy}`);
  pattern(svg);
  const chart = { left: labels, width: width - labels - bars - (bars ? 14 : 0) };
  picture.ranks.forEach((rank, i) => {
    const top = i * row;
    const lane = narrow ? top + 16 : top;
    text(rank.name, { x: 0, y: narrow ? top + 11 : top + 16 }, svg);
    if (rank.member) text(rank.member, { x: narrow ? 90 : 0, y: narrow ? top + 11 : top + 28, class: "quiet" }, svg);
    drawLane(rank, picture, chart, lane, svg);
    if (narrow) drawBar(rank, 0, lane + rowHeight + 4, width - 62, 8, svg);
    else drawBar(rank, width - bars, top + (rowHeight - barHeight) / 2, bars - 60, barHeight, svg);
  });
  drawTime(picture, chart, height, svg);
  body.replaceChildren(svg);
  const over = picture.batches === 1 ? "one batch" : `${picture.batches} batches`;
  document.getElementById("pipeline-note").textContent = [`batch ${picture.batch}`, schedule, `shares of ${over}`].filter(Boolean).join(" · ");
}

// pattern hatches bubbles.
function pattern(svg) {
  const hatch = shape("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, shape("defs", {}, svg));
  shape("rect", { width: 6, height: 6, class: "bubble" }, hatch);
  shape("path", { d: "M0 0V6", class: "bubble" }, hatch);
}

function drawLane(rank, picture, chart, top, svg) {
  const scale = chart.width / Math.max(picture.span, 1e-9);
  shape("rect", { x: chart.left, y: top, width: chart.width, height: rowHeight, fill: "url(#hatch)" }, svg);
  for (const s of rank.slices) {
    const x = chart.left + s.t * scale, w = Math.max(0.5, s.d * scale);
    const other = s.b === picture.batch ? "" : " other";
    const box = shape("rect", { x, y: top, width: w > 3 ? w - 0.6 : w, height: rowHeight, class: s.k + other }, svg);
    shape("title", {}, box).textContent = `${s.n}: ${s.k}, ${format.micros(s.d)}`;
    if (w > 7.5 * s.n.length) text(s.n, { x: x + w / 2, y: top + rowHeight / 2 + 3.5, class: "inside" }, svg);
  }
}

// drawBar draws the shares of a rank: computing, updating, idle.
function drawBar(rank, left, top, width, height, svg) {
  const bar = shape("g", {}, svg);
  shape("title", {}, bar).textContent = `compute ${format.percent(rank.compute)}, update ${format.percent(rank.update)}, bubble ${format.percent(rank.bubble)}`;
  shape("rect", { x: left, y: top, width, height, fill: "url(#hatch)" }, bar);
  shape("rect", { x: left, y: top, width: width * Math.min(1, rank.compute), height, class: "forward" }, bar);
  shape("rect", { x: left + width * Math.min(1, rank.compute), y: top, width: width * Math.min(rank.update, Math.max(0, 1 - rank.compute)), height, class: "update" }, bar);
  const share = text(format.percent(1 - rank.bubble), { x: left + width + 6, y: top + height / 2 + 4 }, bar);
  share.setAttribute("class", "share");
}

function drawTime(picture, chart, height, svg) {
  const y = height - 18;
  shape("line", { x1: chart.left, x2: chart.left + chart.width, y1: y, y2: y }, svg);
  for (let i = 0; i <= 4; i++) {
    const x = chart.left + (chart.width * i) / 4;
    shape("line", { x1: x, x2: x, y1: y, y2: y + 4 }, svg);
    text(format.micros((picture.span * i) / 4), { x, y: y + 15, class: "quiet", "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, svg);
  }
}
