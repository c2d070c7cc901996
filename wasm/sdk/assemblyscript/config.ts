// The hook's `config` section, and other JSON objects.
import { fail } from "./host";

@external("gpupipe", "config_key") declare function hostConfigKey(key: usize, length: i32): void;

let text: string = "{}";

export function setConfig(json: string): void {
  text = json;
}

/** The configuration of the hook. The function `open`, if it reads it, should read all of it: keys that it did not ask for are then
 * reported to the user. The same holds for a function that builds a loss or a model. */
export function config(): Json {
  return new Json(text, "config: ");
}

/** A JSON object, of whose keys the values can be had. */
export class Json {
  constructor(
    public text: string,
    private place: string = "", // prefix of messages; the hook's configuration, whose keys are reported to the host, has its own
  ) {}

  /** A number, exact for up to 15 digits and powers of ten from 1e-22 to 1e22. */
  number(key: string, otherwise: f64): f64 {
    const s = this.find(key);
    if (s === null) return otherwise;
    const x = numberOf(s);
    if (!isNaN(x)) return x;
    this.wrong(key, s, "a number");
    return otherwise;
  }

  /** Whether a key is true. */
  isTrue(key: string): bool {
    const s = this.find(key);
    if (s !== null && s != "true" && s != "false") this.wrong(key, s, "true or false");
    return s == "true";
  }

  /** A text without escapes. */
  string(key: string, otherwise: string): string {
    const s = this.find(key);
    if (s === null) return otherwise;
    if (s.length >= 2 && s.startsWith('"') && !s.includes("\\")) return s.slice(1, -1);
    this.wrong(key, s, "a text without escapes");
    return otherwise;
  }

  private wrong(key: string, found: string, want: string): void {
    fail(this.place + key + " is " + found + ", expected " + want);
  }

  /** The value of a key, as JSON; null without it. */
  find(key: string): string | null {
    if (this.place.length > 0) {
      const b = String.UTF8.encode(key);
      hostConfigKey(changetype<usize>(b), b.byteLength);
    }
    const s = this.text;
    let i = space(s, 0);
    if (at(s, i++) != CharCode.BRACE) return null;
    while (at(s, (i = space(s, i))) == CharCode.QUOTE) {
      const end = stringEnd(s, ++i);
      const name = s.slice(i, end);
      i = space(s, end + 1);
      if (at(s, i++) != CharCode.COLON) return null;
      i = space(s, i);
      const stop = valueEnd(s, i);
      if (name == key) return s.slice(i, stop).trimEnd();
      i = stop + 1;
    }
    return null;
  }
}

const enum CharCode {
  QUOTE = 0x22,
  PLUS = 0x2b,
  COMMA = 0x2c,
  MINUS = 0x2d,
  POINT = 0x2e,
  ZERO = 0x30,
  NINE = 0x39,
  COLON = 0x3a,
  E = 0x65,
  BACKSLASH = 0x5c,
  BRACE = 0x7b,
}

// @ts-ignore: decorators on functions
@inline function at(s: string, i: i32): i32 {
  return i < s.length ? s.charCodeAt(i) : 0;
}

function space(s: string, i: i32): i32 {
  while (at(s, i) == 0x20 || at(s, i) == 0x0a || at(s, i) == 0x09 || at(s, i) == 0x0d) i++;
  return i;
}

// Where a string ends, of which i is the first character.
function stringEnd(s: string, i: i32): i32 {
  for (; i < s.length && at(s, i) != CharCode.QUOTE; i++) if (at(s, i) == CharCode.BACKSLASH) i++;
  return min(i, s.length);
}

// Where a value ends: at the comma or bracket after it.
function valueEnd(s: string, i: i32): i32 {
  let depth = 0;
  for (; i < s.length; i++) {
    const c = at(s, i);
    if (c == CharCode.QUOTE) i = stringEnd(s, i + 1);
    else if (c == 0x7b || c == 0x5b) depth++;
    else if ((c == 0x7d || c == 0x5d || c == CharCode.COMMA) && depth == 0) return i;
    else if (c == 0x7d || c == 0x5d) depth--;
  }
  return s.length;
}

function digit(c: i32): bool {
  return c >= CharCode.ZERO && c <= CharCode.NINE;
}

// NaN of what is not a number.
function numberOf(s: string): f64 {
  let i = 0,
    digits = 0,
    exponent = 0,
    point = false,
    m: u64 = 0;
  const negative = at(s, 0) == CharCode.MINUS;
  if (negative) i++;
  const first = i;
  for (; digit(at(s, i)) || (at(s, i) == CharCode.POINT && !point); i++) {
    if (at(s, i) == CharCode.POINT) point = true;
    else if (digits < 18) {
      m = m * 10 + (at(s, i) - CharCode.ZERO);
      digits += m > 0 ? 1 : 0;
      exponent -= point ? 1 : 0;
    } else exponent += point ? 0 : 1;
  }
  if (i == first) return NaN;
  if ((at(s, i) | 0x20) == CharCode.E) {
    let e = 0;
    const minus = at(s, ++i) == CharCode.MINUS;
    if (minus || at(s, i) == CharCode.PLUS) i++;
    for (; digit(at(s, i)); i++) e = e < 9999 ? e * 10 + at(s, i) - CharCode.ZERO : e;
    exponent += minus ? -e : e;
  }
  if (i < s.length) return NaN;
  let power = 1.0;
  for (let n = abs(exponent); n > 0 && power < 1e300; n--) power *= 10;
  const x = exponent < 0 ? <f64>m / power : <f64>m * power;
  return negative ? -x : x;
}
