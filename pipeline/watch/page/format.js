// Numbers and times as people read them.

const units = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// short writes 1234567 as 1.23M.
export function short(x, digits = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  for (const [size, unit] of units) {
    if (Math.abs(x) >= size) return trim(x / size, digits) + unit;
  }
  if (x !== 0 && Math.abs(x) < 1e-3) return x.toExponential(1);
  return trim(x, digits);
}

function trim(x, digits) {
  return Number.isInteger(x) && Math.abs(x) < 10 ** digits ? String(x) : String(Number(x.toPrecision(digits)));
}

export const loss = (x) => (Number.isFinite(x) ? x.toFixed(4) : "–");
export const percent = (x) => (Number.isFinite(x) ? (100 * x).toFixed(1) + " %" : "–");
export const count = (x) => (Number.isFinite(x) ? Math.round(x).toLocaleString("en-US") : "–");

// bytes writes a size of memory.
export function bytes(x) {
  if (!Number.isFinite(x)) return "–";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(x) >= size) return trim(x / size, 3) + " " + unit;
  }
  return x + " B";
}

// duration writes seconds as 1:02:03, and times below a minute with their unit.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return trim(seconds, 3) + " s";
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  if (days > 0) return `${days}d ${hours}:${two(minutes)}`;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
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
