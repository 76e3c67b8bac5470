//! `WEIR_LOG=FILTER` writes a log to stderr, or to the file that `WEIR_LOG_FILE` names. Otherwise nothing is printed.

use std::any::Any;
use std::fs::OpenOptions;
use std::sync::{Mutex, Once};
use tracing_subscriber::EnvFilter;

/// Sets the log up, once, and keeps panics out of the application's stderr.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        let Ok(filter) = std::env::var("WEIR_LOG") else { return };
        let builder =
            tracing_subscriber::fmt().with_env_filter(EnvFilter::builder().parse_lossy(filter)).with_ansi(false);
        let file = std::env::var_os("WEIR_LOG_FILE")
            .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        // Fails only where a subscriber is there already, which then does as well.
        let _ = match file {
            Some(file) => builder.with_writer(Mutex::new(file)).try_init(),
            None => builder.with_writer(std::io::stderr).try_init(),
        };
    });
}

/// A panic was caught at the edge; its message went to the log when it happened.
pub fn panicked(_panic: &(dyn Any + Send)) {
    tracing::error!("a call failed with EIO because of the panic above");
}
