//! The hook's `config` section and seed, and other JSON objects.

#[link(wasm_import_module = "gpupipe")]
extern "C" {
    fn config_key(key: *const u8, length: usize);
}

static mut TEXT: String = String::new();
static mut SEED: u64 = 0;

pub(crate) unsafe fn set(text: &[u8], seed: u64) {
    *std::ptr::addr_of_mut!(TEXT) = String::from_utf8_lossy(text).into_owned();
    SEED = seed;
}

/// The configuration of the hook.
pub fn config() -> Object<'static> {
    // A module has one thread, and nothing writes after gpupipe_open.
    unsafe { Object { text: &*std::ptr::addr_of!(TEXT), config: true } }
}

/// A JSON object, such as on_metrics receives.
pub fn object(text: &str) -> Object<'_> {
    Object { text, config: false }
}

/// The seed of the hook.
pub fn seed() -> u64 {
    unsafe { SEED }
}

/// A JSON object, of whose keys the values can be had.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    text: &'a str,
    config: bool, // the hook's, whose keys are reported to the host
}

impl<'a> Object<'a> {
    /// The JSON text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The value of a key, as JSON.
    pub fn find(&self, key: &str) -> Option<&'a str> {
        if self.config {
            unsafe { config_key(key.as_ptr(), key.len()) }
        }
        let mut rest = self.text.trim().strip_prefix('{')?;
        loop {
            rest = rest.trim_start().strip_prefix('"')?;
            let end = string_end(rest);
            let name = &rest[..end];
            rest = rest.get(end + 1..)?.trim_start().strip_prefix(':')?.trim_start();
            let end = value_end(rest);
            if name == key {
                return Some(rest[..end].trim_end());
            }
            rest = rest.get(end + 1..)?;
        }
    }

    /// What a message begins with.
    fn place(&self) -> &'static str {
        if self.config {
            "config: "
        } else {
            ""
        }
    }

    /// A number; panics if the key has another value.
    pub fn number(&self, key: &str, otherwise: f64) -> f64 {
        match self.find(key) {
            None => otherwise,
            Some(text) => match text.parse() {
                Ok(x) => x,
                Err(_) => panic!("{}{} is {}, expected a number", self.place(), key, text),
            },
        }
    }

    /// true or false; panics if the key has another value.
    pub fn flag(&self, key: &str, otherwise: bool) -> bool {
        match self.find(key) {
            None => otherwise,
            Some("true") => true,
            Some("false") => false,
            Some(text) => panic!("{}{} is {}, expected true or false", self.place(), key, text),
        }
    }

    /// A text without escapes; panics if the key has another value.
    pub fn string(&self, key: &str, otherwise: &'a str) -> &'a str {
        match self.find(key) {
            None => otherwise,
            Some(text) => match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
                Some(inner) if !inner.contains('\\') => inner,
                _ => panic!("{}{} is {}, expected a text without escapes", self.place(), key, text),
            },
        }
    }
}

/// Where a string ends, after its first quote.
fn string_end(s: &str) -> usize {
    let mut escaped = false;
    for (i, c) in s.bytes().enumerate() {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i,
            _ => {}
        }
    }
    s.len()
}

/// Where a value ends: at the comma or bracket after it.
fn value_end(s: &str) -> usize {
    let (mut depth, mut i) = (0, 0);
    let bytes = s.as_bytes();
    while i < bytes.len() {
        match bytes[i] {
            b'"' => i += 1 + string_end(&s[i + 1..]),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return i,
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => return i,
            _ => {}
        }
        i += 1;
    }
    s.len()
}
