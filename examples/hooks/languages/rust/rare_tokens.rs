//! Rare tokens count more: a target that has been seen n times before weighs 1/√(1 + n), and no less than least. The counts are
//! the module's state, which checkpoints keep. Tokens whose numbers differ by a multiple of 65,536 are counted together.
//!
//! Config: least (0.1).
use gpupipe::{config, Global, Weights};

static SEEN: Global<[u32; 1 << 16]> = Global::new([0; 1 << 16]);
static LEAST: Global<f64> = Global::new(0.0);

gpupipe::open!(open);
gpupipe::state!(save, load);
gpupipe::token_weights!(weigh);

fn open() {
    LEAST.set(config().number("least", 0.1));
}

fn weigh(batch: &mut Weights) {
    SEEN.with(|seen| {
        for (weight, target) in batch.weights.iter_mut().zip(batch.targets) {
            let n = &mut seen[*target as usize & 0xffff];
            *weight = (*weight as f64 * LEAST.get().max(1.0 / (1.0 + *n as f64).sqrt())) as f32;
            *n += 1;
        }
    })
}

fn save() -> Vec<u8> {
    SEEN.with(|seen| seen.iter().flat_map(|n| n.to_le_bytes()).collect())
}

fn load(state: &[u8]) {
    SEEN.with(|seen| {
        assert_eq!(state.len(), 4 * seen.len(), "the state is another module's");
        for (n, bytes) in seen.iter_mut().zip(state.chunks_exact(4)) {
            *n = u32::from_le_bytes(bytes.try_into().unwrap());
        }
    })
}
