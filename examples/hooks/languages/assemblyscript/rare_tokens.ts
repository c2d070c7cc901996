// Rare tokens count more: a target that has been seen n times before weighs 1/√(1 + n), and no less than least. The counts are
// the module's state, which checkpoints keep. Tokens whose numbers differ by a multiple of 65,536 are counted together.
//
// Config: least (0.1).
import { Batch, config, fail, Slice } from "gpupipe";

const seen = new StaticArray<u32>(1 << 16);
let least: f64;

export function open(): void {
  least = config().number("least", 0.1);
}

export function tokenWeights(batch: Batch): void {
  for (let i = 0; i < batch.targets.length; i++) {
    const token = batch.targets[i] & 0xffff;
    const weight = max(least, 1 / sqrt(1 + <f64>seen[token]));
    batch.weights[i] = <f32>(batch.weights[i] * weight);
    seen[token]++;
  }
}

export function save(): StaticArray<u8> {
  const state = new StaticArray<u8>(4 * seen.length);
  memory.copy(changetype<usize>(state), changetype<usize>(seen), state.length);
  return state;
}

export function load(state: Slice<u8>): void {
  if (state.length != 4 * seen.length) return fail("the state is another module's");
  memory.copy(changetype<usize>(seen), state.address, state.length);
}
