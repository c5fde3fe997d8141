#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restage_fuzz::op_chain::check(data));
