//! Trains a Llama by meganeura until the process is ended, with a line for each step. See adapters.py. meganeura has Adam
//! without weight decay, and graphs of one sequence.
use meganeura::models::smollm2::{SmolLM2Config, build_training_graph, transposed_weight_names};

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    let read = |name: &str| std::fs::read(format!("{folder}/{name}")).expect(name);
    let job: serde_json::Value = serde_json::from_slice(&read("job.json")).unwrap();
    let number = |key: &str| job["model"][key].as_f64().unwrap_or_else(|| panic!("{key}"));
    let (tokens, batch) = (job["seq_len"].as_u64().unwrap() as usize, job["batch_size"].as_u64().unwrap());
    assert_eq!(batch, 1, "meganeura's graph of training has one sequence: found a batch of {batch}");
    let config = SmolLM2Config {
        vocab_size: number("vocab_size") as usize,
        hidden_size: number("hidden_size") as usize,
        num_hidden_layers: number("num_hidden_layers") as usize,
        num_attention_heads: number("num_attention_heads") as u32,
        num_key_value_heads: number("num_key_value_heads") as u32,
        intermediate_size: number("intermediate_size") as usize,
        rms_norm_eps: number("rms_norm_eps") as f32,
        rope_theta: number("rope_theta") as f32,
        tie_word_embeddings: job["model"]["tie_word_embeddings"].as_bool().unwrap(),
    };
    let graph = build_training_graph(&config, tokens);
    let mut session = meganeura::build(&graph, meganeura::SessionConfig::from_env()).0;
    let weights: Vec<f32> = read("weights.f32").chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let turned = transposed_weight_names(&config);
    for t in job["tensors"].as_array().unwrap() {
        let name = t["name"].as_str().unwrap();
        let shape: Vec<usize> = t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let at = t["offset"].as_u64().unwrap() as usize;
        let x = &weights[at..at + shape.iter().product::<usize>()];
        if turned.iter().any(|n| n == name) {
            let (rows, cols) = (shape[0], shape[1]);
            let y: Vec<f32> = (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect();
            session.set_parameter(name, &y);
        } else {
            session.set_parameter(name, x);
        }
    }
    let all: Vec<u32> = read("tokens.u16").chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    for step in 0.. {
        let at = step % (all.len() / tokens - 1) * tokens;
        let mut labels = vec![0.0f32; tokens * config.vocab_size];
        for i in 0..tokens {
            labels[i * config.vocab_size + all[at + i + 1] as usize] = 1.0;
        }
        session.set_input_u32("token_ids", &all[at..at + tokens]);
        session.set_input("labels", &labels);
        session.set_adam(0.001, 0.9, 0.95, 1e-8);
        session.step();
        session.wait();
        println!("{{\"event\":\"step\",\"step\":{{\"step\":{},\"loss\":{}}}}}", step + 1, session.read_loss());
    }
}
