//! `WEIR_LOG=FILTER` writes a log to stderr, or to the file that `WEIR_LOG_FILE` names. Otherwise nothing is printed.

use std::fs::OpenOptions;
use std::io;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use weir_device::OnceInherited;

/// Sets the log up, once, and keeps panics out of the application's stderr.
pub fn start() {
    static STARTED: OnceInherited = OnceInherited::new();
    STARTED.call_once(|| {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        // An empty filter would let errors through.
        let Some(filter) = std::env::var("WEIR_LOG").ok().filter(|filter| !filter.is_empty()) else { return };
        let builder =
            tracing_subscriber::fmt().with_env_filter(EnvFilter::builder().parse_lossy(filter)).with_ansi(false);
        let file = std::env::var_os("WEIR_LOG_FILE")
            .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        // Fails only where a subscriber is there already, which then does as well.
        let _ = match file {
            Some(file) => builder.with_writer(Arc::new(file)).try_init(),
            None => builder.with_writer(|| Stderr).try_init(),
        };
    });
}

/// Standard error without the lock that Rust's own has: a forked child would wait for ever for a thread of its parent
/// that was writing. A line is one call of write(2), here as in a file.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: as many bytes as there are.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A panic was caught at the edge; its message went to the log when it happened.
pub fn panicked() {
    tracing::error!("a call failed with EIO because of the panic above");
}
