#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restage_fuzz::gguf::check(data));
