//! naga's translation of WGSL to SPIR-V, for a host that has nothing but this module's memory.
//!
//! The host writes the source to what `reserve` gives, calls `translate`, and finds at `output` the SPIR-V, or the text of
//! an error. If naga panics, that is the text of the panic, and the instance is done for.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::sync::Mutex;

static SOURCE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static OUTPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

// Bits of `translate`'s options; spirv.go has the same.
const CHECK_BUFFERS: u32 = 1; // for devices without robustBufferAccess2: an index beyond a buffer is made to lie within
const FLOAT16: u32 = 2;
const SUBGROUPS: u32 = 4;
const COOPERATIVE_MATRIX: u32 = 8;
const ZERO_WORKGROUP: u32 = 16; // the device clears workgroup memory itself; else the code does, which compiles slowly
const TRUST_INDICES: u32 = 32; // an index into an array of a function's own, or of the workgroup, is taken as it is

fn put(bytes: Vec<u8>) {
    *OUTPUT.lock().unwrap_or_else(|e| e.into_inner()) = bytes;
}

#[unsafe(no_mangle)]
pub extern "C" fn reserve(n: usize) -> *mut u8 {
    std::panic::set_hook(Box::new(|info| put(info.to_string().into_bytes())));
    let mut source = SOURCE.lock().unwrap();
    *source = vec![0; n];
    source.as_mut_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn output() -> *const u8 {
    OUTPUT.lock().unwrap_or_else(|e| e.into_inner()).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn output_size() -> usize {
    OUTPUT.lock().unwrap_or_else(|e| e.into_inner()).len()
}

/// translate returns 0 when the output is SPIR-V.
#[unsafe(no_mangle)]
pub extern "C" fn translate(options: u32) -> u32 {
    let source = std::mem::take(&mut *SOURCE.lock().unwrap());
    match std::str::from_utf8(&source).map_err(|e| e.to_string()).and_then(|s| compile(s, options)) {
        Ok(words) => {
            put(words.iter().flat_map(|w| w.to_le_bytes()).collect());
            0
        }
        Err(text) => {
            put(text.into_bytes());
            1
        }
    }
}

fn compile(source: &str, options: u32) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(source)
        .map_err(|e| at(e.location(source), e.message().to_string()))?;
    let info = Validator::new(ValidationFlags::all(), capabilities(options))
        .validate(&module)
        .map_err(|e| at(e.location(source), causes(e.as_inner())))?;
    if module.entry_points.len() != 1 || module.entry_points[0].stage != naga::ShaderStage::Compute || module.entry_points[0].name != "main" {
        return Err("expected one entry point, a compute shader called main".to_string());
    }
    if !module.overrides.is_empty() {
        return Err("override is not supported: expected const".to_string());
    }
    spv::write_vec(&module, &info, &writing(options), None).map_err(|e| causes(&e))
}

fn capabilities(options: u32) -> Capabilities {
    let mut c = Capabilities::empty();
    c.set(Capabilities::SHADER_FLOAT16 | Capabilities::SHADER_FLOAT16_IN_FLOAT32, options & FLOAT16 != 0);
    c.set(Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER, options & SUBGROUPS != 0);
    c.set(Capabilities::COOPERATIVE_MATRIX, options & COOPERATIVE_MATRIX != 0);
    c
}

/// Vulkan 1.2 knows SPIR-V 1.5; 1.3 is what subgroups and storage buffers need.
fn writing(options: u32) -> spv::Options<'static> {
    spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            // Drivers keep an array in registers if they see each index when they have unrolled the loops around it. Made to lie within,
            // as WGSL promises, indices hide that; on a CPU, where registers are few and unrolled loops compile for seconds, so much the better.
            index: if options & TRUST_INDICES != 0 { BoundsCheckPolicy::Unchecked } else { BoundsCheckPolicy::Restrict },
            buffer: if options & CHECK_BUFFERS != 0 { BoundsCheckPolicy::ReadZeroSkipWrite } else { BoundsCheckPolicy::Unchecked },
            ..Default::default()
        },
        zero_initialize_workgroup_memory: if options & ZERO_WORKGROUP != 0 {
            spv::ZeroInitializeWorkgroupMemoryMode::Native
        } else {
            spv::ZeroInitializeWorkgroupMemoryMode::Polyfill
        },
        force_loop_bounding: false, // a counter in every loop, and drivers cannot unroll any more
        use_storage_input_output_16: false, // a capability that not every device has, for nothing that is used here
        ..Default::default()
    }
}

fn at(location: Option<naga::SourceLocation>, message: String) -> String {
    match location {
        Some(l) => format!("line {}: {}", l.line_number, message),
        None => message,
    }
}

/// causes is an error with all that it is due to, on one line.
fn causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        text += ": ";
        text += &cause.to_string();
        next = cause.source();
    }
    text
}
