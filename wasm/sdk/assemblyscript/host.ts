// The host's functions, and what the host calls in every module.
import { setConfig } from "./config";

@external("gpupipe", "log") declare function hostLog(text: usize, length: i32): void;
@external("gpupipe", "fail") declare function hostFail(text: usize, length: i32): void;

/** Writes a line for the user. */
export function log(text: string): void {
  const b = String.UTF8.encode(text);
  hostLog(changetype<usize>(b), b.byteLength);
}

/** Says why the call fails, which should then return. */
export function fail(text: string): void {
  const b = String.UTF8.encode(text);
  hostFail(changetype<usize>(b), b.byteLength);
}

/** What a failed assertion and `throw` call (--use abort=gpupipe/host/abort). */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  fail((message ? message : "abort") + " at " + (file ? file : "") + ":" + line.toString() + ":" + column.toString());
  unreachable();
}

let hookSeed: u64;

/** The seed of the hook; Math.random begins with it (--use seed=gpupipe/host/seed). */
export function seed(): f64 {
  return reinterpret<f64>(hookSeed);
}

export function gpupipe_abi_v1(): i32 {
  return 0;
}

// Outside of what is collected: it is the host's for good.
export function gpupipe_alloc(size: i32): usize {
  return heap.alloc(size);
}

export function start(text: usize, length: i32, s: i64): void {
  setConfig(String.UTF8.decodeUnsafe(text, length));
  hookSeed = s;
}
