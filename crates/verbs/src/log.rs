//! `WEIR_LOG=FILTER` writes a log to stderr, or to the file in `WEIR_LOG_FILE`. Otherwise nothing is printed.

use std::fs::OpenOptions;
use std::io;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use weir_device::OnceInherited;

/// Initialises the log once, and sends the messages of panics there instead of to the application's stderr.
pub fn start() {
    static STARTED: OnceInherited = OnceInherited::new();
    STARTED.call_once(|| {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        // An empty filter would let errors pass.
        let Some(filter) = std::env::var("WEIR_LOG").ok().filter(|filter| !filter.is_empty()) else { return };
        let builder =
            tracing_subscriber::fmt().with_env_filter(EnvFilter::builder().parse_lossy(filter)).with_ansi(false);
        let file = std::env::var_os("WEIR_LOG_FILE")
            .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        // Fails only if the process has a subscriber already, which then serves as well.
        let _ = match file {
            Some(file) => builder.with_writer(Arc::new(file)).try_init(),
            None => builder.with_writer(|| Stderr).try_init(),
        };
    });
}

/// Standard error without the lock of Rust's own: a forked child would wait forever for a lock that another thread of
/// its parent held. A line is one write(2), as for a file.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: reads at most `bytes.len()` bytes.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs that a call failed. The panic's own message was logged when it happened.
pub fn panicked() {
    tracing::error!("a call failed with EIO because of the panic above");
}
