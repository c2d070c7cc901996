//! Every hook, each of which does a little with all that it is given. TestEveryHookInAllLanguages says what.
use gpupipe::{config, normal, ones, unit, zeros, Batch, Global, Sample, Value, Weights};

static CALLS: Global<u32> = Global::new(0);
static SCALE: Global<f64> = Global::new(0.0);
static LOUD: Global<bool> = Global::new(false);
static NAME: Global<&str> = Global::new("");

gpupipe::open!(open);
gpupipe::state!(save, load);
gpupipe::map_document!(map_document);
gpupipe::map_batch!(map_batch);
gpupipe::token_weights!(token_weights);
gpupipe::learning_rate!(learning_rate);
gpupipe::on_metrics!(on_metrics);
gpupipe::loss_scalars!(loss_scalars);
gpupipe::loss_grad!(loss_grad);
gpupipe::build_loss_of_inputs!(loss);
gpupipe::build_model!(model);

fn open() {
    SCALE.set(config().number("scale", 2.0));
    LOUD.set(config().flag("loud", false));
    NAME.set(config().string("name", "no one"));
    gpupipe::log(NAME.get());
}

fn save() -> Vec<u8> {
    CALLS.get().to_le_bytes().to_vec()
}

fn load(state: &[u8]) {
    CALLS.set(u32::from_le_bytes(state.try_into().expect("a state of 4 bytes")));
}

fn map_document(text: &str, keep: &mut dyn FnMut(&str)) {
    keep(text);
    if LOUD.get() {
        keep(NAME.get());
    }
}

fn map_batch(b: &mut Batch) {
    for i in 0..b.rows * b.length {
        std::mem::swap(&mut b.tokens[i], &mut b.targets[i]);
        b.segments[i] = (i / b.length) as u32 + b.step as u32;
        b.weights[i] += b.steps as f32;
        if let Some(a) = b.aligned.first() {
            b.weights[i] += a.elements::<f32>()[i * a.dims()[2] as usize];
        }
    }
    CALLS.with(|n| *n += 1);
}

fn token_weights(b: &mut Weights) {
    for i in 0..b.rows * b.length {
        b.weights[i] *= (SCALE.get() * (b.step + b.steps) as f64 + b.tokens[i] as f64 - b.targets[i] as f64) as f32;
    }
}

fn learning_rate(step: i64, steps: i64, base: f64) -> f64 {
    base * SCALE.get() + step as f64 / steps as f64
}

fn on_metrics(json: &str) -> bool {
    gpupipe::object(json).number("loss", 0.0) > SCALE.get()
}

fn loss_scalars(step: i64, steps: i64, scalars: &mut [f32]) {
    scalars[0] = step as f32;
    scalars[1] = (step as f64 / steps as f64) as f32;
}

fn loss_grad(s: &mut Sample) {
    for i in 0..s.rows {
        let at = i * s.vocab + s.targets[i] as usize;
        s.losses[i] = s.logits[at];
        s.gradient[at] = 1.0 / s.rows as f32;
    }
}

fn loss() -> Value {
    let (logits, targets) = (Value::input("logits"), Value::input("targets"));
    let nll = logits.cross_entropy(targets);
    let far = Value::input("hidden").square().mean(&[-1], false);
    let less = nll.less(1.0);
    let (hot, cold) = (nll * Value::scalar("heat"), nll / Value::scalar("cold"));
    let heated = less.select(hot, cold);
    -(heated - far).shift(-0.5) + nll.second().scale(1e-3)
}

fn model(tokens: Value) -> Value {
    let (vocab, heads, d) = (256, 4, 64);
    let (rows, length) = (tokens.shape()[0], tokens.shape()[1]);
    let mut x = normal("embedding", 0.02, &[vocab, d]).embedding(tokens);
    for layer in 0..2 {
        unit(&format!("layer.{}", layer));
        let h = x.rms_norm(ones(&format!("layer.{}.norm", layer), &[d]), 1e-5);
        let q = h.linear(normal(&format!("layer.{}.q", layer), 0.01, &[d, d])).reshape(&[rows as i64, length as i64, heads, d as i64 / heads]);
        let k = q.rope(10000.0);
        let a = if layer > 0 { k.attention(k, q) } else { k.attention_within(k, q, Value::input("segments")) };
        x = x + a.reshape(&[rows as i64, length as i64, -1]);
    }
    x = x.layer_norm(ones("norm", &[d]), zeros("bias", &[d]), 0.1);
    x = x.broadcast(&[2, rows, length, d as usize]).slice(0, 1, 2).permute(&[1, 0, 2, 3]).reshape(&[rows as i64, length as i64, -1]);
    x.softmax().linear(normal("head", 0.02, &[vocab, d]))
}
