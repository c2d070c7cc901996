//! Trains a Llama by burn until the process is ended, with a line for each step. See adapters.py.
use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, Linear, RmsNorm};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::silu;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData};
use serde_json::Value;

#[derive(Module, Debug)]
struct Layer {
    input_norm: RmsNorm,
    projections: Vec<Linear>, // of queries, keys and values
    output: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn forward(&self, x: Tensor<3>, rope: &[Tensor<4>; 2]) -> Tensor<3> {
        let ([batch, tokens, width], head_dim) = (x.dims(), 2 * rope[0].dims()[3]);
        let h = self.input_norm.forward(x.clone());
        let [q, k, v] = [0, 1, 2].map(|i| {
            let y = self.projections[i].forward(h.clone());
            y.reshape([batch, tokens, width / head_dim, head_dim]).swap_dims(1, 2)
        });
        let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let y = attention(rotate(q, rope.clone()), rotate(k, rope.clone()), v, None, None, causal);
        let x = x + self.output.forward(y.swap_dims(1, 2).reshape([batch, tokens, width]));
        let h = self.mlp_norm.forward(x.clone());
        x + self.down.forward(silu(self.gate.forward(h.clone())) * self.up.forward(h))
    }
}

#[derive(Module, Debug)]
struct Llama {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Option<Linear>,
}

impl Llama {
    fn forward(&self, tokens: Tensor<2, Int>, rope: &[Tensor<4>; 2]) -> Tensor<3> {
        let x = self.layers.iter().fold(self.embedding.forward(tokens), |x, layer| layer.forward(x, rope));
        let x = self.norm.forward(x);
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.embedding.weight.val().transpose().unsqueeze()),
        }
    }
}

/// Cosines and sines of rotary position embedding, [1, 1, tokens, head_dim / 2].
fn rope(tokens: usize, head_dim: usize, theta: f64, device: &Device) -> [Tensor<4>; 2] {
    let half = head_dim / 2;
    let angle = |i: usize| ((i / half) as f64 * theta.powf(-((i % half) as f64) / half as f64)) as f32;
    let data: Vec<f32> = (0..tokens * half).map(angle).collect();
    let angles = Tensor::<4>::from_data(TensorData::new(data, [1, 1, tokens, half]), device);
    [angles.clone().cos(), angles.sin()]
}

/// Rotates halves of x [batch, heads, tokens, head_dim], as Hugging Face's Llama does. RotaryEncoding rotates neighbors.
fn rotate(x: Tensor<4>, [cos, sin]: [Tensor<4>; 2]) -> Tensor<4> {
    let [a, b]: [Tensor<4>; 2] = x.chunk(2, 3).try_into().unwrap();
    Tensor::cat(vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin], 3)
}

/// Clips by the norm of all gradients. burn clips each parameter's by its own norm.
struct Clip {
    gradients: GradientsParams,
    squares: Vec<Tensor<1>>,
    factor: Option<Tensor<1>>, // known in the second visit
}

impl Clip {
    fn all(model: &Llama, gradients: GradientsParams, most: f64) -> GradientsParams {
        let mut clip = Clip { gradients, squares: vec![], factor: None };
        model.visit(&mut clip);
        let norm = Tensor::cat(std::mem::take(&mut clip.squares), 0).sum().sqrt();
        clip.factor = Some((norm + 1e-6).recip().mul_scalar(most).clamp_max(1.0));
        model.visit(&mut clip);
        clip.gradients
    }
}

impl ModuleVisitor for Clip {
    fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
        let g = self.gradients.get::<D>(p.id).expect("a gradient");
        match &self.factor {
            None => self.squares.push(g.square().sum()),
            Some(factor) => self.gradients.register(p.id, g * factor.clone().unsqueeze()),
        }
    }
}

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    let read = |name: &str| std::fs::read(format!("{folder}/{name}")).expect(name);
    let job: Value = serde_json::from_slice(&read("job.json")).unwrap();
    let c = &job["model"];
    let number = |v: &Value| v.as_f64().expect("a number");
    let (batch, tokens) = (number(&job["batch_size"]) as usize, number(&job["seq_len"]) as usize);
    assert_eq!(c["num_key_value_heads"], c["num_attention_heads"], "grouped queries are not written here");
    let device = Device::wgpu(DeviceKind::DefaultDevice).autodiff();

    let floats: Vec<f32> = read("weights.f32").chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let tensor = |name: &str| {
        let t = job["tensors"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name}"));
        let shape: Vec<usize> = t["shape"].as_array().unwrap().iter().map(|n| number(n) as usize).collect();
        let at = number(&t["offset"]) as usize;
        TensorData::new(floats[at..at + shape.iter().product::<usize>()].to_vec(), shape)
    };
    let linear = |name: &str| {
        let weight = Tensor::<2>::from_data(tensor(&format!("{name}.weight")), &device).transpose();
        Linear { weight: Param::from_data(weight.into_data(), &device), bias: None }
    };
    let norm = |name: &str| {
        let gamma = Param::from_data(tensor(&format!("{name}.weight")), &device);
        RmsNorm { gamma, epsilon: number(&c["rms_norm_eps"]) }
    };
    let layer = |i: usize| {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        Layer {
            input_norm: norm(&name("input_layernorm")),
            projections: ["q", "k", "v"].map(|x| linear(&name(&format!("self_attn.{x}_proj")))).into(),
            output: linear(&name("self_attn.o_proj")),
            mlp_norm: norm(&name("post_attention_layernorm")),
            gate: linear(&name("mlp.gate_proj")),
            up: linear(&name("mlp.up_proj")),
            down: linear(&name("mlp.down_proj")),
        }
    };
    let mut model = Llama {
        embedding: Embedding { weight: Param::from_data(tensor("model.embed_tokens.weight"), &device) },
        layers: (0..number(&c["num_hidden_layers"]) as usize).map(layer).collect(),
        norm: norm("model.norm"),
        head: (c["tie_word_embeddings"] != true).then(|| linear("lm_head")),
    };
    let rope = rope(tokens, number(&c["head_dim"]) as usize, number(&c["rope_theta"]), &device);

    let a = &job["adamw"];
    let adamw = AdamWConfig::new().with_beta_1(number(&a["betas"][0]) as f32).with_beta_2(number(&a["betas"][1]) as f32);
    let adamw = adamw.with_epsilon(number(&a["eps"]) as f32);
    let undecayed = adamw.clone().with_weight_decay(0.0).build();
    let decayed = adamw.with_weight_decay(number(&job["weight_decay"]) as f32).init();
    let mut optimizer = decayed.with_group(ParamGroup::from_predicate("norm"), undecayed, None);

    let all: Vec<i32> = read("tokens.u16").chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap()) as i32).collect();
    let n = batch * tokens;
    for step in 0.. {
        let at = step % ((all.len() - 1) / n) * n;
        let window = |at: usize| Tensor::<1, Int>::from_data(TensorData::new(all[at..at + n].to_vec(), [n]), &device);
        let logits = model.forward(window(at).reshape([batch, tokens]), &rope).reshape([n as i64, -1]);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(logits, window(at + 1));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradients = Clip::all(&model, gradients, number(&job["grad_clip"]));
        model = optimizer.step(number(&a["lr"]), model, gradients);
        let loss = loss.into_scalar::<f32>();
        println!("{{\"event\":\"step\",\"step\":{{\"step\":{},\"loss\":{loss}}}}}", step + 1);
    }
}
