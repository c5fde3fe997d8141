//! Progress on stderr: bytes, rate, time left. Nothing when that is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of `bytes` bytes that is drawn on a terminal only.
pub fn bar(bytes: u64, quiet: bool) -> ProgressBar {
    // indicatif draws nothing on a stderr that is no terminal.
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let template = "{msg:>8} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style)
}
