// What the page knows of each run.

export class Run {
  constructor(name) {
    this.name = name;
    this.steps = [];
    this.columns = new Map();
    this.rows = 0; // of the file
    this.newest = null; // step and values at the end of the run, also if the page shows another part
    this.about = null;
    this.summary = null;
    this.color = "";
  }

  // take takes rows: all that there are, or those that follow. The first of them may be here already.
  take({ all, rows, steps, columns }) {
    this.rows = rows;
    if (all) {
      this.steps = [];
      this.columns = new Map();
    }
    let keep = this.steps.length;
    while (keep > 0 && steps.length > 0 && this.steps[keep - 1] >= steps[0]) keep--;
    this.steps.length = keep;
    for (const [name, values] of Object.entries(columns)) {
      if (!this.columns.has(name)) this.columns.set(name, new Array(keep).fill(null));
    }
    for (const [name, values] of this.columns) {
      values.length = keep;
      const fresh = Object.hasOwn(columns, name) ? columns[name] : null;
      for (let i = 0; i < steps.length; i++) values.push(fresh ? number(fresh[i]) : null);
    }
    for (const step of steps) this.steps.push(step);
  }

  column(name) { return this.columns.get(name); }

  // axis is the values of the horizontal axis. Steps take the place of a column that the run does not have.
  axis(name) { return (name !== "step" && this.columns.get(name)) || this.steps; }

  // takeNewest takes the newest values.
  takeNewest({ step, values }) {
    this.newest = { step, values: new Map(Object.entries(values).map(([name, x]) => [name, number(x)])) };
  }

  // last is the newest value of a column; undefined without one.
  last(name) {
    if (this.newest) return this.newest.values.get(name);
    const values = this.columns.get(name) ?? [];
    for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null) return values[i];
    return undefined;
  }

  // step is the newest step.
  step() { return this.newest?.step ?? this.steps.at(-1); }

  // points are the values of a column with their place on the axis, in ascending order and without those that were not
  // measured. A value that is not finite is a gap: null in ys, and an entry of odd.
  points(name, axis) {
    const values = this.columns.get(name), at = this.axis(axis), xs = [], ys = [], odd = new Map();
    if (!values) return { xs, ys, odd };
    for (let i = 0; i < values.length; i++) {
      const x = at[i], finite = Number.isFinite(values[i]);
      if (values[i] === null || !Number.isFinite(x) || (xs.length > 0 && x < xs[xs.length - 1])) continue;
      if (!finite) odd.set(x, values[i]);
      if (xs.length > 0 && x === xs[xs.length - 1]) {
        if (finite) ys[ys.length - 1] = values[i];
        continue;
      }
      xs.push(x);
      ys.push(finite ? values[i] : null);
    }
    return { xs, ys, odd };
  }

  // matching lists the columns whose names a pattern matches, with its first group, in natural order.
  matching(pattern) {
    const found = [];
    for (const name of this.columns.keys()) {
      const match = pattern.exec(name);
      if (match) found.push({ name, part: match[1] });
    }
    return found.sort((a, b) => a.part.localeCompare(b.part, "en", { numeric: true }));
  }
}

// number reads a value of the stream, in which those that are not finite are texts.
export function number(x) { return typeof x === "string" ? Number(x) : x; }

// smoothed is the exponential moving average of values, without the bias of its beginning. Gaps stay.
export function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((v) => {
    if (v === null) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}
