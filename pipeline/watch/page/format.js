// Numbers and times as people read them.

const units = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// odd writes what is no finite number; undefined: x is one. A value that was not measured is a dash.
export function odd(x) {
  if (x === null || x === undefined) return "–";
  if (Number.isNaN(x)) return "NaN";
  if (x === Infinity) return "∞";
  return x === -Infinity ? "−∞" : undefined;
}

// short writes 1234567 as 1.23M.
export function short(x, digits = 3) {
  if (odd(x)) return odd(x);
  for (const [size, unit] of units) {
    if (Math.abs(x) >= size) return trim(x / size, digits) + unit;
  }
  if (x !== 0 && Math.abs(x) < 1e-3) return x.toExponential(1);
  return trim(x, digits);
}

function trim(x, digits) {
  return Number.isInteger(x) && Math.abs(x) < 10 ** digits ? String(x) : String(Number(x.toPrecision(digits)));
}

export const loss = (x) => odd(x) ?? x.toFixed(4);
export const percent = (x) => odd(x) ?? (100 * x).toFixed(1) + " %";
export const count = (x) => odd(x) ?? Math.round(x).toLocaleString("en-US");

// bytes writes a size of memory.
export function bytes(x) {
  if (odd(x)) return odd(x);
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(x) >= size) return trim(x / size, 3) + " " + unit;
  }
  return x + " B";
}

// duration writes seconds as 1:02:03, and times below a minute with their unit.
export function duration(seconds) {
  if (odd(seconds)) return odd(seconds);
  if (seconds < 60) return trim(seconds, 3) + " s";
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  if (days > 0) return `${days}d ${hours}:${two(minutes)}`;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
}

// span writes seconds for an axis, with units: 90 min is "1 h 30 min".
export function span(seconds) {
  if (seconds < 60) return trim(seconds, 3) + " s";
  const s = Math.round(seconds), parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const n = Math.floor(s / size) % (size === 86400 ? Infinity : size === 3600 ? 24 : 60);
    if (n > 0) parts.push(`${n} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

// micros writes a time of microseconds.
export function micros(us) {
  if (us >= 1e6) return trim(us / 1e6, 3) + " s";
  if (us >= 1e3) return trim(us / 1e3, 3) + " ms";
  return trim(us, 3) + " µs";
}

// clock writes seconds since 1970 as the time of day.
export function clock(seconds) {
  return seconds > 0 ? new Date(1000 * seconds).toLocaleTimeString([], { hour12: false }) : "";
}
