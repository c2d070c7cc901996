// What hooks are called with: arrays in memory that the host has filled, or will read.
@external("gpupipe", "emit") declare function hostEmit(text: usize, length: i32): void;

/** Keeps a document, in mapDocument. */
export function keep(text: string): void {
  const b = String.UTF8.encode(text);
  hostEmit(changetype<usize>(b), b.byteLength);
}

/** The elements of an array, valid during the call. */
@final
export class Slice<T> {
  constructor(
    public address: usize,
    public length: i32,
  ) {}

  @operator("[]") get(i: i32): T {
    if (<u32>i >= <u32>this.length) throw new RangeError("index " + i.toString() + " of " + this.length.toString());
    return load<T>(this.address + (<usize>i << alignof<T>()));
  }

  @operator("[]=") set(i: i32, value: T): void {
    if (<u32>i >= <u32>this.length) throw new RangeError("index " + i.toString() + " of " + this.length.toString());
    store<T>(this.address + (<usize>i << alignof<T>()), value);
  }
}

/** Writes a state where the host wants it, if there is room. */
export function put(state: StaticArray<u8>, to: usize, room: i32): i32 {
  if (state.length <= room) memory.copy(to, changetype<usize>(state), state.length);
  return state.length;
}

const DESCRIPTOR = 32;

/** The arrays of a call. */
@final
export class Arrays {
  constructor(
    private address: usize,
    public length: i32,
  ) {}

  rank(array: i32): i32 {
    return load<i32>(this.at(array), 8);
  }

  /** The extent of an axis; the last is contiguous. */
  dim(array: i32, axis: i32): i32 {
    assert(<u32>axis < <u32>this.rank(array), "there is no such axis");
    return load<i32>(this.at(array) + (<usize>axis << 2), 12);
  }

  /** The elements of an array, which must be T. */
  elements<T>(array: i32): Slice<T> {
    assert(load<i32>(this.at(array)) == dtype<T>(), "the array's dtype is not that asked for");
    let n = 1;
    for (let axis = 0; axis < this.rank(array); axis++) n *= this.dim(array, axis);
    return new Slice<T>(load<usize>(this.at(array), 28), n);
  }

  /** The elements of an array of bytes, as text. */
  text(array: i32): string {
    const bytes = this.elements<u8>(array);
    return String.UTF8.decodeUnsafe(bytes.address, bytes.length);
  }

  private at(array: i32): usize {
    assert(<u32>array < <u32>this.length, "there is no such array");
    return this.address + <usize>array * DESCRIPTOR;
  }
}

function dtype<T>(): i32 {
  if (isFloat<T>()) return sizeof<T>() == 4 ? 1 : 6;
  if (sizeof<T>() == 1) return 3;
  if (sizeof<T>() == 8) return 4;
  return isSigned<T>() ? 2 : 5;
}

/** A batch of rows sequences of length tokens, one after the other: each slice has rows·length elements. In tokenWeights only weights
 * may be changed, and there are no segments and no aligned arrays. */
export class Batch {
  rows: i32;
  length: i32;
  /** Below the vocabulary's size. */
  tokens: Slice<u32>;
  /** The token that comes next. */
  targets: Slice<u32>;
  /** Of each target's loss: 1 on entry; at least 0. */
  weights: Slice<f32>;
  /** 0 on entry; a token sees those before it in its row that have its number. */
  segments: Slice<u32>;
  /** Counted from 0. */
  step: i64;
  /** Of the run. */
  steps: i64;

  constructor(
    private arrays: Arrays,
    private others: i32, // the number of arrays that are not aligned
  ) {
    this.rows = arrays.dim(0, 0);
    this.length = arrays.dim(0, 1);
    this.tokens = arrays.elements<u32>(0);
    this.targets = arrays.elements<u32>(1);
    this.weights = arrays.elements<f32>(2);
    this.segments = others == 5 ? arrays.elements<u32>(3) : new Slice<u32>(0, 0);
    const clock = arrays.elements<i64>(others - 1);
    this.step = clock[0];
    this.steps = clock[1];
  }

  /** The number of arrays of data.aligned. */
  get alignedLength(): i32 {
    return this.arrays.length - this.others;
  }

  /** One of them, in the order of their names, [rows, length, …]. */
  aligned<T>(n: i32): Slice<T> {
    return this.arrays.elements<T>(this.others + n);
  }

  /** The extent of an axis of it. */
  alignedDim(n: i32, axis: i32): i32 {
    return this.arrays.dim(this.others + n, axis);
  }
}

/** What lossGrad works on: it stores the loss of each row, and the gradient of their mean on the logits. gpupipe hook check compares the
 * graph with it, and nothing else calls it. */
export class Sample {
  rows: i32;
  vocab: i32;
  /** [rows, vocab], as gradient. */
  logits: Slice<f32>;
  targets: Slice<u32>;
  losses: Slice<f32>;
  gradient: Slice<f32>;

  constructor(a: Arrays) {
    this.rows = a.dim(0, 0);
    this.vocab = a.dim(0, 1);
    this.logits = a.elements<f32>(0);
    this.targets = a.elements<u32>(1);
    this.losses = a.elements<f32>(2);
    this.gradient = a.elements<f32>(3);
  }
}
