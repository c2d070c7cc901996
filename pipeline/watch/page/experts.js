// The drawing of the experts: a cell for each expert of each layer, colored by its load over the mean of the layer.

const labels = 64, gap = 2;

// color is that of a load: blue below the mean, orange above, in steps of a factor of two up to four.
function color(load, css) {
  if (load === 0) return css("--idle");
  const doublings = Math.max(-2, Math.min(2, Math.log2(load)));
  const [r, g, b] = rgb(css("--even")), to = rgb(css(doublings < 0 ? "--c0" : "--c1")), share = Math.abs(doublings) / 2;
  return `rgb(${[r, g, b].map((x, i) => Math.round(x + (to[i] - x) * share)).join()})`;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// summary describes a layer in words.
function summary({ layer, loads }) {
  const most = Math.max(...loads), idle = loads.filter((x) => x === 0).length;
  return `layer ${layer}: largest ${most.toFixed(2)}, expert ${loads.indexOf(most)}` + (idle > 0 ? `, ${idle} idle` : "");
}

// drawExperts draws loads into the page.
export function drawExperts(loads) {
  const card = document.getElementById("loads"), body = document.getElementById("loads-picture");
  card.hidden = !loads || loads.layers.length === 0;
  if (card.hidden) return;
  const style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue(name).trim();
  const width = Math.max(200, body.clientWidth || card.clientWidth - 30), columns = Math.max(...loads.layers.map((l) => l.loads.length), 1);
  const row = Math.max(6, Math.min(18, Math.floor(360 / loads.layers.length))), cell = (width - labels) / columns, ratio = devicePixelRatio;
  const canvas = document.createElement("canvas"), height = row * loads.layers.length;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Load over mean load at step ${loads.step}. ${loads.layers.map(summary).join("; ")}`);
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.font = "11px system-ui, sans-serif";
  draw.textBaseline = "middle";
  const every = Math.ceil(14 / row), between = cell > 3 * gap ? gap : 0;
  loads.layers.forEach(({ layer, loads: values }, i) => {
    draw.fillStyle = css("--quiet");
    if (i % every === 0) draw.fillText(`layer ${layer}`, 0, (i + 0.5) * row);
    values.forEach((x, expert) => {
      draw.fillStyle = color(x, css);
      draw.fillRect(labels + expert * cell, i * row, cell - between, row - Math.min(between, row - 5));
    });
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = loads.layers[Math.floor(event.offsetY / row)], expert = Math.floor((event.offsetX - labels) / cell);
    const load = at?.loads[expert];
    canvas.title = load === undefined ? "" : `layer ${at.layer}, expert ${expert}: ${load.toFixed(2)} times the mean`;
  });
  body.replaceChildren(canvas);
  document.getElementById("loads-note").textContent = `step ${loads.step} · over the mean of the layer`;
}
